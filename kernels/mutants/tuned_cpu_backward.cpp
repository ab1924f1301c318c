#include "kernels/cpu/vector_generic.hpp"

#define RMSNORM_ISA generic
#include "kernels/cpu/tuned_rows.hpp"
#include "kernels/mutants/tuned_passes.hpp"

namespace rmsnorm::kernels::cpu {
namespace {

template <Fault Named>
struct Pass {
  static std::int32_t run(const rmsnorm_backward_args* given) {
    constexpr Fault fault = tuned_backward_fault(Named);
    const rmsnorm_backward_args args = read_args<fault>(*given);
    return dispatch_tuned_mutant<Types, Named>(args, [&](auto x) {
      using T = decltype(x);
      if (args.gamma == nullptr) return generic::backward_typed<T, generic::NoGamma, fault>(args);
      return generic::backward_typed<T, T, fault>(args);
    });
  }
};

}  // namespace

BackwardPass tuned_mutant_backward(Fault fault) {
  static constexpr auto passes = passes_of_tuned_faults<Pass, has_all>();
  return passes[static_cast<std::size_t>(fault)];
}

}  // namespace rmsnorm::kernels::cpu
