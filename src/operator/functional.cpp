#include "rmsnorm/functional.hpp"

#include "operator/autograd.hpp"
#include "operator/kernels.hpp"
#include "operator/tensors.hpp"

namespace rmsnorm::functional {
namespace {

/// The kernels for x's device; CPU ones for what the contract will refuse anyway.
const rmsnorm_implementation& kernels_for(const at::Tensor& x) {
  return default_kernels(x.defined() && x.is_cuda() ? RMSNORM_CUDA : RMSNORM_CPU);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& gamma, double eps, Contract contract) {
  if (!gamma.defined())
    throw ContractError("rms_norm: gamma must be a tensor; got an undefined one");
  if (x.defined() && x.dim() == 0)
    throw ContractError("rms_norm: x must have at least 1 dim; got shape []");
  // A nested tensor has no size to ask for; it is refused below, as an undefined one is.
  const std::int64_t cols = x.defined() && !x.is_nested() ? x.size(-1) : 0;
  return rms_norm_with(kernels_for(x), x, gamma, {&cols, 1}, eps, contract);
}

at::Tensor rms_norm(const at::Tensor& x, at::IntArrayRef normalized_shape,
                    const std::optional<at::Tensor>& gamma, double eps) {
  return rms_norm_with(kernels_for(x), x, gamma.value_or(at::Tensor()), normalized_shape, eps,
                       Contract::full);
}

}  // namespace rmsnorm::functional
