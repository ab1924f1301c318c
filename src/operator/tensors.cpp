#include "operator/tensors.hpp"

#include <ATen/ATen.h>

#include "operator/counters.hpp"

namespace rmsnorm {

std::int32_t to_rmsnorm_dtype(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return RMSNORM_FLOAT64;
    case at::kFloat:
      return RMSNORM_FLOAT32;
    case at::kHalf:
      return RMSNORM_FLOAT16;
    case at::kBFloat16:
      return RMSNORM_BFLOAT16;
    default:
      return -1;
  }
}

at::ScalarType to_scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::float64:
      return at::kDouble;
    case Dtype::float32:
      return at::kFloat;
    case Dtype::float16:
      return at::kHalf;
    case Dtype::bfloat16:
      return at::kBFloat16;
  }
  return at::kFloat;
}

namespace {

const char* dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "float64";
    case at::kFloat:
      return "float32";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    default:
      return c10::toString(type);
  }
}

}  // namespace

TensorInfo describe(const at::Tensor& tensor) {
  TensorInfo info;
  info.defined = tensor.defined();
  if (!info.defined) return info;
  info.dense_storage =
      tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested();
  const at::ScalarType type = tensor.scalar_type();
  info.dtype = to_rmsnorm_dtype(type);
  info.dtype_name = dtype_name(type);
  const at::Device device = tensor.device();
  info.device_type = device.is_cpu() ? RMSNORM_CPU : device.is_cuda() ? RMSNORM_CUDA : -1;
  info.device_index = device.index();
  if (!info.dense_storage) return info;
  info.sizes = {tensor.sizes().data(), tensor.sizes().size()};
  info.strides = {tensor.strides().data(), tensor.strides().size()};
  return info;
}

std::optional<rmsnorm_rows> rows_in_place(const at::Tensor& tensor, std::int64_t normalized_dims) {
  const at::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
  const std::int64_t leading = tensor.dim() - normalized_dims;
  std::int64_t cols = 1;
  for (std::int64_t dim = tensor.dim(); dim-- > leading;) {
    if (sizes[dim] != 1 && strides[dim] != cols) return std::nullopt;
    cols *= sizes[dim];
  }
  // Collapse the leading dims from the last to the first: a dim whose stride continues the one
  // below it joins it.
  std::int64_t inner_rows = 1, inner_stride = cols, outer_rows = 1, outer_stride = 0;
  for (std::int64_t dim = leading; dim-- > 0;) {
    if (sizes[dim] == 1) continue;
    if (inner_rows == 1 && outer_rows == 1) {
      inner_rows = sizes[dim];
      inner_stride = strides[dim];
    } else if (outer_rows == 1 && strides[dim] == inner_rows * inner_stride) {
      inner_rows *= sizes[dim];
    } else if (outer_rows == 1) {
      outer_rows = sizes[dim];
      outer_stride = strides[dim];
    } else if (strides[dim] == outer_rows * outer_stride) {
      outer_rows *= sizes[dim];
    } else {
      return std::nullopt;
    }
  }
  if (outer_rows == 1) outer_stride = inner_rows * inner_stride;
  return rmsnorm_rows{.data = tensor.const_data_ptr(),
                      .inner_rows = std::max<std::int64_t>(inner_rows, 1),
                      .inner_stride = inner_stride,
                      .outer_stride = outer_stride,
                      .dtype = to_rmsnorm_dtype(tensor.scalar_type())};
}

rmsnorm_rows rows_or_copy(const at::Tensor& tensor, std::int64_t normalized_dims,
                          at::Tensor& holder) {
  if (const auto rows = rows_in_place(tensor, normalized_dims)) return *rows;
  holder = tensor.contiguous();
  count_copy();
  return *rows_in_place(holder, normalized_dims);
}

}  // namespace rmsnorm
