#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/contract.hpp"
#include "core/dtype.hpp"
#include "rmsnorm/implementation.h"

namespace rmsnorm {

/// rmsnorm_dtype of a libtorch scalar type; -1 for a type that no implementation takes.
std::int32_t to_rmsnorm_dtype(at::ScalarType type);
at::ScalarType to_scalar_type(Dtype dtype);

/// The view of `tensor` that the contract looks at; valid while the tensor lives.
TensorInfo describe(const at::Tensor& tensor);

/// `tensor` as rows of its last `normalized_dims` dims, read where they lie: possible when those
/// dims are adjacent and the leading ones collapse into at most two strides. Empty otherwise, and
/// then only a copy can be read.
std::optional<rmsnorm_rows> rows_in_place(const at::Tensor& tensor, std::int64_t normalized_dims);

/// rows_in_place, after a copy that counts in call_counts().copies where one is needed; `holder`
/// keeps it alive.
rmsnorm_rows rows_or_copy(const at::Tensor& tensor, std::int64_t normalized_dims,
                          at::Tensor& holder);

}  // namespace rmsnorm
