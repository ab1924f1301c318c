#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "rmsnorm/implementation.h"

namespace rmsnorm {

struct ForwardResult {
  at::Tensor y;     ///< x's shape and dtype, contiguous
  at::Tensor rstd;  ///< [rows] float32 (float64 for float64 x); undefined when not wanted
};

/// One forward of `table` on tensors that meet the contract: outputs from libtorch's allocator, x's
/// device made current for the call, its current stream. gamma may be undefined.
ForwardResult run_forward(const rmsnorm_implementation& table, const at::Tensor& x,
                          const at::Tensor& gamma, std::int64_t normalized_dims, double eps,
                          bool want_rstd);

struct BackwardResult {
  at::Tensor dx;      ///< x's shape and dtype; undefined when not wanted
  at::Tensor dgamma;  ///< gamma's shape and dtype; undefined when not wanted
};

/// One backward, likewise. rstd: as that forward gave it.
BackwardResult run_backward(const rmsnorm_implementation& table, const at::Tensor& x,
                            const at::Tensor& dy, const at::Tensor& gamma, const at::Tensor& rstd,
                            std::int64_t normalized_dims, double eps, bool want_dx,
                            bool want_dgamma);

}  // namespace rmsnorm
