#include "bench/tensors.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include "core/dtype.hpp"
#include "operator/tensors.hpp"

namespace rmsnorm::bench {
namespace {

at::Tensor in_place(const rmsnorm_rows& rows, std::int64_t count, std::int64_t cols,
                    const at::Device& device) {
  const at::TensorOptions options =
      at::TensorOptions().dtype(to_scalar_type(static_cast<Dtype>(rows.dtype))).device(device);
  // libtorch takes a pointer it may write through; nothing that is timed writes to inputs.
  void* const data = const_cast<void*>(rows.data);
  if (rows.outer_stride == rows.inner_rows * rows.inner_stride) {
    return at::from_blob(data, {count, cols}, {rows.inner_stride, 1}, options);
  }
  return at::from_blob(data, {count / rows.inner_rows, rows.inner_rows, cols},
                       {rows.outer_stride, rows.inner_stride, 1}, options);
}

}  // namespace

CallTensors call_tensors(const CaseInputs& inputs, std::int64_t copies, bool differentiable) {
  rmsnorm_backward_args args{};
  inputs.describe(args);
  const at::Device device = inputs.x().device();
  CallTensors tensors;
  const at::Tensor x = in_place(args.x, args.rows, args.cols, device);
  const at::Tensor dy = in_place(args.dy, args.rows, args.cols, device);
  for (std::int64_t copy = 0; copy < copies; ++copy) {
    tensors.x.push_back(copy == 0 ? x : x.clone());
    tensors.dy.push_back(copy == 0 ? dy : dy.clone());
  }
  if (inputs.gamma().defined()) tensors.gamma = inputs.gamma().detach();
  if (!differentiable) return tensors;
  for (at::Tensor& leaf : tensors.x) leaf.requires_grad_(true);
  if (tensors.gamma.defined()) tensors.gamma.requires_grad_(true);
  return tensors;
}

at::Tensor poisoned(at::IntArrayRef sizes, at::ScalarType type, const at::Device& device) {
  constexpr std::int64_t kNanByte = 0xFF;  // a run of it is a NaN in every dtype
  std::int64_t elements = 1;
  for (const std::int64_t size : sizes) elements *= size;
  return at::full({elements * static_cast<std::int64_t>(c10::elementSize(type))}, kNanByte,
                  at::TensorOptions().dtype(at::kByte).device(device))
      .view(type)
      .view(sizes);
}

}  // namespace rmsnorm::bench
