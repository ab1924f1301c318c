#include "kernels/cpu/vector_generic.hpp"

#define RMSNORM_ISA generic
#include "kernels/cpu/tuned_rows.hpp"
#include "kernels/mutants/tuned_passes.hpp"

namespace rmsnorm::kernels::cpu {
namespace {

template <Fault Named>
struct Pass {
  static std::int32_t run(const rmsnorm_forward_args* given) {
    constexpr Fault fault = tuned_forward_fault(Named);
    const rmsnorm_forward_args args = read_args<fault>(*given);
    return dispatch_tuned_mutant<Types, Named>(args, [&](auto x) {
      using T = decltype(x);
      if (args.gamma == nullptr) return generic::Forward<T, generic::NoGamma, fault>(args).run();
      return generic::Forward<T, T, fault>(args).run();
    });
  }
};

}  // namespace

ForwardPass tuned_mutant_forward(Fault fault) {
  static constexpr auto passes = passes_of_tuned_faults<Pass, has_all>();
  return passes[static_cast<std::size_t>(fault)];
}

}  // namespace rmsnorm::kernels::cpu
