#include "kernels/cuda/rowwise.cuh"
#include "kernels/mutants/passes.hpp"

namespace rmsnorm::kernels::cuda {
namespace {

template <Fault Named>
struct Pass {
  static constexpr Fault fault = forward_fault(Named);
  static std::int32_t run(const rmsnorm_forward_args* args) {
    if constexpr (fault != Named) {
      return Pass<Fault::none>::run(args);
    } else {
      return dispatch_mutant_dtypes<Types, fault>(*args, [&](auto x, auto gamma) -> std::int32_t {
        return launch_rowwise_forward<decltype(x), decltype(gamma), fault>(*args);
      });
    }
  }
};

}  // namespace

ForwardPass mutant_forward(Fault fault) {
  static constexpr auto passes = passes_of_all_faults<Pass>();
  return passes[static_cast<std::size_t>(fault)];
}

}  // namespace rmsnorm::kernels::cuda
