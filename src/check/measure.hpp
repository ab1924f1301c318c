#pragma once

#include <ATen/core/Tensor.h>

#include "core/comparison.hpp"
#include "reference/reference.hpp"

namespace rmsnorm {

/// Adds rows to a comparison by measuring them with tensor operations on the device where they lie:
/// of a result of 2^32 elements the values need not travel, only sums of its rows. False, with
/// nothing added, where any element is outside its tolerance or not finite: such rows are for
/// Comparison::add to look at one by one, which names them. The sums are those that it forms; which
/// rows pass is judged there alone.
bool add_measured(Comparison& comparison, const reference::Expected& expected,
                  const at::Tensor& got);

}  // namespace rmsnorm
