#pragma once

#include <array>
#include <type_traits>
#include <utility>

#include "kernels/common/arguments.hpp"
#include "kernels/common/steps.hpp"
#include "kernels/common/tuned_faults.hpp"
#include "kernels/mutants/passes.hpp"

// Private to the mutants of tuned: what their passes have in common, on the CPU and on CUDA.

namespace rmsnorm::kernels {

/// The fault that the forward (the backward) of a mutant is compiled with.
constexpr Fault tuned_forward_fault(Fault named) {
  const Fault fault = forward_fault(named);
  return fault == Fault::none ? Fault::control : fault;
}
constexpr Fault tuned_backward_fault(Fault named) {
  const Fault fault = backward_fault(named);
  return fault == Fault::none ? Fault::control : fault;
}

/// Calls run with an element of the dtype of the mutant: one for the sake of compile time, but for
/// the one without a fault.
template <class Types, Fault Named, class Args, class Run>
std::int32_t dispatch_tuned_mutant(const Args& args, Run run) {
  if (!is_tuned_mutant_dtype(Named, args.x.dtype, args.gamma_dtype)) return RMSNORM_UNSUPPORTED;
  if constexpr (Named == Fault::none) {
    if (args.x.dtype == RMSNORM_FLOAT16) return run(typename Types::float16{});
  }
  using Element =
      std::conditional_t<needs_16_bits(Named), typename Types::float16, typename Types::float32>;
  return run(Element{});
}

/// The faults in how a pass reads its arguments, before any kernel does.
template <Fault F>
rmsnorm_rows read_rows(rmsnorm_rows rows) {
  if constexpr (F == Fault::outer_stride_ignored)
    rows.outer_stride = rows.inner_rows * rows.inner_stride;
  return rows;
}
template <Fault F>
rmsnorm_forward_args read_args(rmsnorm_forward_args args) {
  args.x = read_rows<F>(args.x);
  if constexpr (F == Fault::last_row_skipped) args.rows = forward_rows_taken<F>(args.rows);
  return args;
}
template <Fault F>
rmsnorm_backward_args read_args(rmsnorm_backward_args args) {
  args.x = read_rows<F>(args.x);
  if constexpr (F == Fault::dy_by_x_stride) {
    args.dy.inner_rows = args.x.inner_rows;
    args.dy.inner_stride = args.x.inner_stride;
    args.dy.outer_stride = args.x.outer_stride;
  }
  const bool dx = args.dx != nullptr, dgamma = args.dgamma != nullptr;
  if constexpr (F == Fault::dx_needs_dgamma) {
    if (!computes_dx<F>(dx, dgamma)) args.dx = nullptr;
  }
  if constexpr (F == Fault::dgamma_needs_dx || F == Fault::dgamma_past_threshold) {
    if (!computes_partials<F>(dx, dgamma) || !writes_dgamma<F>(args.rows)) args.dgamma = nullptr;
  }
  return args;
}

/// Pass<fault>::run by fault, of Fault::none and those of tuned that `kHas` takes; nullptr for the
/// others.
template <template <Fault> class Pass, bool (*kHas)(Fault), std::size_t... I>
constexpr auto passes_of_tuned_faults(std::index_sequence<I...>) {
  using Function = decltype(&Pass<Fault::none>::run);
  const auto pass_of = [](auto index) -> Function {
    constexpr Fault fault = static_cast<Fault>(decltype(index)::value);
    if constexpr ((fault == Fault::none || is_tuned_fault(fault)) && kHas(fault)) {
      return &Pass<fault>::run;
    } else {
      return nullptr;
    }
  };
  return std::array<Function, sizeof...(I)>{pass_of(std::integral_constant<std::size_t, I>{})...};
}
template <template <Fault> class Pass, bool (*kHas)(Fault)>
constexpr auto passes_of_tuned_faults() {
  return passes_of_tuned_faults<Pass, kHas>(std::make_index_sequence<kFaultCount + 1>{});
}

constexpr bool has_all(Fault) {
  return true;
}

}  // namespace rmsnorm::kernels
