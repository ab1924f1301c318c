#pragma once

#include "check/trial.hpp"

namespace rmsnorm {

/// Further calls of a case, for what one comparison of one call cannot show; each finding worsens
/// `result`. `first` is the result of the plain call.
///  - a NaN in one row makes that row of y or dx NaN, all of dgamma, and leaves the bits of every
///    other row as they were;
///  - the first row alone gives the same bits of y as among others;
///  - dx without dgamma, and dgamma without dx, are as right as both.
void probe(Trial& trial, const Bounds& bounds, const at::Tensor& first, ComparisonResult& result);

}  // namespace rmsnorm
