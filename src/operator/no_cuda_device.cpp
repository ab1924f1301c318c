#include "operator/device.hpp"
#include "rmsnorm/errors.hpp"

namespace rmsnorm {

const rmsnorm_implementation* find_cuda_kernels(std::string_view) {
  return nullptr;
}

at::Tensor empty_on_cuda(at::IntArrayRef, at::ScalarType, const c10::Device&) {
  throw UnavailableError("empty_on_cuda: " + cuda_problem(0));
}

std::string cuda_problem(std::int32_t) {
  return "this build has no CUDA kernels, because nvcc was not found; install the CUDA 13 toolkit "
         "and build again, or "
         "use --device cpu";
}

CudaFacts cuda_facts(std::int32_t) {
  throw UnavailableError("cuda_facts: " + cuda_problem(0));
}

std::string cuda_runtime_version() {
  return {};
}

}  // namespace rmsnorm
