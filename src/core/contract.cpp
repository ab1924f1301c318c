#include "core/contract.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "rmsnorm/implementation.h"

namespace rmsnorm {
namespace {

template <class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void refuse(const char* where, const Parts&... parts) {
  std::ostringstream text;
  text.precision(17);
  text << where << ": ";
  (text << ... << parts);
  throw ContractError(text.str());
}

std::string device_text(const TensorInfo& tensor) {
  if (tensor.device_type == RMSNORM_CPU) return "cpu";
  if (tensor.device_type == RMSNORM_CUDA) return "cuda:" + std::to_string(tensor.device_index);
  return "another kind of device";
}

bool is_contiguous(const TensorInfo& tensor) {
  std::int64_t expected = 1;
  for (std::size_t dim = tensor.sizes.size(); dim-- > 0;) {
    if (tensor.sizes[dim] == 0) return true;
    if (tensor.sizes[dim] != 1 && tensor.strides[dim] != expected) return false;
    expected *= tensor.sizes[dim];
  }
  return true;
}

bool is_16_bit(std::int32_t dtype) {
  return dtype == RMSNORM_FLOAT16 || dtype == RMSNORM_BFLOAT16;
}

void require_usable(const char* where, const char* role, const TensorInfo& tensor) {
  if (!tensor.defined) refuse(where, role, " must be a tensor; got an undefined one");
  if (!tensor.dense_storage)
    refuse(where, role, " must be a dense tensor; got a sparse, quantized or nested one");
  if (tensor.device_type < 0)
    refuse(where, role, " must be on a CPU or CUDA device; got ", device_text(tensor));
}

void require_same_device(const char* where, const char* role, const TensorInfo& tensor,
                         const TensorInfo& x) {
  if (tensor.device_type == x.device_type && tensor.device_index == x.device_index) return;
  refuse(where, role, " must be on x's device ", device_text(x), "; got ", device_text(tensor));
}

void require_contiguous(const char* where, const char* role, const TensorInfo& tensor) {
  if (is_contiguous(tensor)) return;
  refuse(where, role, " must be contiguous under the minimum contract; got shape ",
         shape_text(tensor.sizes), " with strides ", shape_text(tensor.strides),
         "; call .contiguous() or use Contract::full");
}

void require_epsilon(const char* where, double eps) {
  if (std::isfinite(eps) && eps > 0) return;
  refuse(where, "eps must be finite and > 0; got ", eps);
}

void require_minimum_shapes(const char* where, const TensorInfo& x, const TensorInfo* gamma) {
  if (x.sizes.size() != 2) {
    refuse(where, "x must have 2 dims under the minimum contract; got shape ", shape_text(x.sizes));
  }
  if (gamma == nullptr) refuse(where, "gamma must be given under the minimum contract; got none");
  const std::int64_t rows = x.sizes[0], cols = x.sizes[1];
  if (cols < 1 || cols > kMinimumMaxCols) {
    refuse(where, "x must have 1 to ", kMinimumMaxCols,
           " columns under the minimum contract; got shape ", shape_text(x.sizes));
  }
  if (rows > kMinimumMaxScratchBytes / 4 / cols) {
    refuse(where,
           "rows * cols * 4 bytes of scratch must not exceed 64 MiB under the minimum contract; "
           "got shape ",
           shape_text(x.sizes));
  }
}

void require_normalized_shape(const char* where, const TensorInfo& x,
                              std::span<const std::int64_t> shape) {
  if (shape.empty()) refuse(where, "normalized_shape must have at least 1 dim; got []");
  const bool fits = x.sizes.size() >= shape.size() &&
                    std::equal(shape.begin(), shape.end(),
                               x.sizes.end() - static_cast<std::ptrdiff_t>(shape.size()));
  if (!fits) {
    refuse(where, "x must end in the normalized shape ", shape_text(shape), "; got x of shape ",
           shape_text(x.sizes));
  }
  for (const std::int64_t size : shape) {
    if (size < 1)
      refuse(where, "the normalized shape must have at least 1 element; got ", shape_text(shape));
  }
}

void require_dtypes(Contract contract, const char* where, const TensorInfo& x,
                    const TensorInfo* gamma) {
  if (contract == Contract::minimum) {
    if (x.dtype != RMSNORM_FLOAT32 && x.dtype != RMSNORM_FLOAT16) {
      refuse(where, "x must be float32 or float16 under the minimum contract; got ", x.dtype_name);
    }
    if (gamma->dtype != x.dtype) {
      refuse(where, "gamma must have x's dtype ", x.dtype_name, " under the minimum contract; got ",
             gamma->dtype_name);
    }
    return;
  }
  if (x.dtype < 0)
    refuse(where, "x must be float64, float32, float16 or bfloat16; got ", x.dtype_name);
  if (gamma == nullptr || gamma->dtype == x.dtype) return;
  if (is_16_bit(x.dtype) && gamma->dtype == RMSNORM_FLOAT32) return;
  refuse(where, "gamma must have x's dtype ", x.dtype_name,
         is_16_bit(x.dtype) ? " or be float32" : "", "; got ", gamma->dtype_name);
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> sizes) {
  std::string text = "[";
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    if (dim > 0) text += ", ";
    text += std::to_string(sizes[dim]);
  }
  return text + "]";
}

void require_forward(Contract contract, const char* where, const TensorInfo& x,
                     const TensorInfo* gamma, std::span<const std::int64_t> normalized_shape,
                     double eps) {
  require_usable(where, "x", x);
  if (gamma != nullptr) require_usable(where, "gamma", *gamma);
  require_epsilon(where, eps);
  if (contract == Contract::minimum) require_minimum_shapes(where, x, gamma);
  require_normalized_shape(where, x, normalized_shape);
  if (gamma != nullptr && !std::ranges::equal(gamma->sizes, normalized_shape)) {
    refuse(where, "gamma must have shape ", shape_text(normalized_shape), "; got ",
           shape_text(gamma->sizes));
  }
  require_dtypes(contract, where, x, gamma);
  if (gamma != nullptr) require_same_device(where, "gamma", *gamma, x);
  if (contract == Contract::minimum) {
    require_contiguous(where, "x", x);
    require_contiguous(where, "gamma", *gamma);
  }
}

void require_backward(Contract contract, const char* where, const TensorInfo& x,
                      const TensorInfo& dy) {
  require_usable(where, "dy", dy);
  if (!std::ranges::equal(dy.sizes, x.sizes)) {
    refuse(where, "dy must have x's shape ", shape_text(x.sizes), "; got ", shape_text(dy.sizes));
  }
  if (dy.dtype != x.dtype)
    refuse(where, "dy must have x's dtype ", x.dtype_name, "; got ", dy.dtype_name);
  require_same_device(where, "dy", dy, x);
  if (contract == Contract::minimum) require_contiguous(where, "dy", dy);
}

}  // namespace rmsnorm
