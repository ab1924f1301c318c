#pragma once

#include <array>
#include <utility>

#include "kernels/common/arguments.hpp"
#include "kernels/common/tuned_faults.hpp"
#include "kernels/mutants/mutants.hpp"

// Private to the mutants: their passes, by fault.

namespace rmsnorm::kernels {

using ForwardPass = std::int32_t (*)(const rmsnorm_forward_args*);
using BackwardPass = std::int32_t (*)(const rmsnorm_backward_args*);

namespace cpu {
ForwardPass mutant_forward(Fault fault);
BackwardPass mutant_backward(Fault fault);
ForwardPass tuned_mutant_forward(Fault fault);
BackwardPass tuned_mutant_backward(Fault fault);
}  // namespace cpu
// with_cuda.cpp, or no_cuda.cpp where all of them are nullptr.
namespace cuda {
const rmsnorm_implementation* product(Original original);
ForwardPass mutant_forward(Fault fault);
BackwardPass mutant_backward(Fault fault);
ForwardPass tuned_mutant_forward(Fault fault);
BackwardPass tuned_mutant_backward(Fault fault);
}  // namespace cuda

/// Whether mutants take the dtypes: few, for the sake of compile time.
inline bool is_mutant_dtype(std::int32_t x, std::int32_t gamma) {
  const bool same = gamma == x || gamma == RMSNORM_NO_DTYPE;
  return (same && (x == RMSNORM_FLOAT32 || x == RMSNORM_FLOAT16)) ||
         (x == RMSNORM_BFLOAT16 && gamma == RMSNORM_FLOAT32);
}

/// The same of tuned's, which take one: of its own each fault, both the one without.
inline bool is_tuned_mutant_dtype(Fault fault, std::int32_t x, std::int32_t gamma) {
  const bool same = gamma == x || gamma == RMSNORM_NO_DTYPE;
  const bool either = fault == Fault::none;
  return same && ((x == RMSNORM_FLOAT16 && (either || needs_16_bits(fault))) ||
                  (x == RMSNORM_FLOAT32 && (either || !needs_16_bits(fault))));
}

/// Calls `run` with elements of the dtypes of `args`. With `F` none all pairs of is_mutant_dtype
/// are compiled, with another fault bfloat16 only where the fault needs a gamma of another dtype.
template <class Types, Fault F, class Args, class Run>
std::int32_t dispatch_mutant_dtypes(const Args& args, Run run) {
  using F32 = typename Types::float32;
  using F16 = typename Types::float16;
  if (!is_mutant_dtype(args.x.dtype, args.gamma_dtype)) return RMSNORM_UNSUPPORTED;
  if (args.x.dtype == RMSNORM_FLOAT32) return run(F32{}, F32{});
  if (args.x.dtype == RMSNORM_FLOAT16) return run(F16{}, F16{});
  if constexpr (F == Fault::none || F == Fault::gamma_read_as_x)
    return run(typename Types::bfloat16{}, F32{});
  return RMSNORM_UNSUPPORTED;
}

/// An array of Pass<fault>::run for every fault, none first.
template <template <Fault> class Pass, std::size_t... I>
constexpr auto passes_of_all_faults(std::index_sequence<I...>) {
  using Function = decltype(&Pass<Fault::none>::run);
  return std::array<Function, sizeof...(I)>{&Pass<static_cast<Fault>(I)>::run...};
}
template <template <Fault> class Pass>
constexpr auto passes_of_all_faults() {
  return passes_of_all_faults<Pass>(std::make_index_sequence<kFaultCount + 1>{});
}

}  // namespace rmsnorm::kernels
