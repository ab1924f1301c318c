// `tuned` on the CPU for the instruction set RMSNORM_ISA, whose vector_*.hpp the including file has
// taken before. No include guard: each instruction set takes its own copy.
#include "kernels/cpu/tuned_loops.hpp"

// These need what the one above defines.
#include "kernels/cpu/tuned_backward.hpp"
#include "kernels/cpu/tuned_forward.hpp"

namespace rmsnorm::kernels::cpu::RMSNORM_ISA {

template <Fault F>
std::int32_t tuned_forward(const rmsnorm_forward_args* args) {
  return dispatch_dtypes<Types>(*args, [&](auto x, auto gamma) {
    using T = decltype(x);
    if (args->gamma == nullptr) return Forward<T, NoGamma, F>(*args).run();
    return Forward<T, decltype(gamma), F>(*args).run();
  });
}

template <Fault F>
std::int32_t tuned_backward(const rmsnorm_backward_args* args) {
  return dispatch_dtypes<Types>(*args, [&](auto x, auto gamma) {
    using T = decltype(x);
    if (args->gamma == nullptr) return backward_typed<T, NoGamma, F>(*args);
    return backward_typed<T, decltype(gamma), F>(*args);
  });
}

#undef RMSNORM_INLINE

}  // namespace rmsnorm::kernels::cpu::RMSNORM_ISA
