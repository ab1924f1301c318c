#include "check/measure.hpp"

#include <ATen/ATen.h>

#include <vector>

namespace rmsnorm {
namespace {

/// Values rounded to the significand of a dtype, to nearest, ties to even, in any exponent.
at::Tensor round_significand(const at::Tensor& values, Dtype dtype) {
  const int dropped = dropped_significand_bits(dtype);
  if (dropped == 0) return values;
  const std::int64_t odd_bit = std::int64_t{1} << dropped;
  const at::Tensor bits = values.view(at::kLong);
  const at::Tensor tie = at::bitwise_and(bits, odd_bit).bitwise_right_shift(dropped);
  return tie.add_(bits).add_(odd_bit / 2 - 1).bitwise_and_(~(odd_bit - 1)).view(at::kDouble);
}

static_assert(sizeof(RowSums) == 10 * sizeof(double));  // the order of stack() below

}  // namespace

bool add_measured(Comparison& comparison, const reference::Expected& expected,
                  const at::Tensor& got) {
  const Bounds& bounds = comparison.bounds();
  const at::Tensor &want = expected.want, &magnitude = expected.magnitude;
  const at::Tensor abs_want = want.abs(), want_squared = want.square();
  const at::Tensor want2 = want_squared.sum(1);

  const at::Tensor error = got.to(at::kDouble) - want;
  const at::Tensor abs_error = error.abs();
  at::Tensor atol = at::full({want.size(0), 1}, bounds.elementwise.atol, want.options());
  if (bounds.scale_atol_by_row)
    atol.mul_((want2 / static_cast<double>(want.size(1))).sqrt_().clamp_min_(1).unsqueeze(1));
  const at::Tensor tolerance = abs_want * bounds.elementwise.rtol + atol;
  const at::Tensor within = abs_error.le(tolerance).all();  // a NaN is not
  // An error of zero uses nothing, also of a tolerance of zero.
  const at::Tensor used = at::where(abs_error.eq(0), abs_error, abs_error / tolerance);
  const at::Tensor worst = used.argmax();
  const at::Tensor relative = at::where(abs_want.gt(0), abs_error / abs_want, 0.0);

  const at::Tensor rounding = round_significand(want, bounds.dtype) - want;
  const at::Tensor reach = magnitude * comparison.accumulation();
  const at::Tensor down = (round_significand(want - reach, bounds.dtype) - want) * want;
  const at::Tensor up = (round_significand(want + reach, bounds.dtype) - want) * want;
  const at::Tensor sums = at::stack(
      {want2, want_squared.square().sum(1), abs_want.sum(1), error.square().sum(1),
       (error * want).sum(1), rounding.square().sum(1), at::minimum(down, up).sum(1),
       at::maximum(down, up).sum(1), magnitude.square().sum(1), (magnitude * abs_want).sum(1)},
      1);
  const at::Tensor clean = within.logical_and(sums.isfinite().all());
  const auto at_worst = [&](const at::Tensor& values) {
    return values.reshape(-1).index_select(0, worst.view(1)).to(at::kDouble).squeeze(0);
  };
  const at::Tensor facts =
      at::stack({clean.to(at::kDouble), abs_error.max(), relative.max(), worst.to(at::kDouble),
                 at_worst(want), at_worst(got), at_worst(tolerance)})
          .cpu();
  const double* fact = facts.const_data_ptr<double>();
  if (fact[0] != 1) return false;

  const at::Tensor on_cpu = sums.cpu().contiguous();
  const auto* rows = static_cast<const RowSums*>(on_cpu.const_data_ptr());
  comparison.add(MeasuredRows{.rows = {rows, static_cast<std::size_t>(want.size(0))},
                              .max_abs_error = fact[1],
                              .max_rel_error = fact[2],
                              .worst_index = static_cast<std::int64_t>(fact[3]),
                              .expected = fact[4],
                              .got = fact[5],
                              .tolerance = fact[6]});
  return true;
}

}  // namespace rmsnorm
