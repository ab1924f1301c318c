#pragma once

#include <string_view>

#include "rmsnorm/implementation.h"

namespace rmsnorm {

/// Implementations made of libtorch calls, as tables like any other: `reference`, the tutorial's
/// tensor operations with libtorch's autograd for the backward, and `aten`, libtorch's own fused
/// operation (on the CPU a chain of tensor operations, as libtorch has no fused kernel there).
/// nullptr for another name. Their calls run on the current stream, which must be the args' one;
/// they allocate.
const rmsnorm_implementation* find_tensor_table(std::string_view name, std::int32_t device_type);

}  // namespace rmsnorm
