#include "check/buffers.hpp"

#include <ATen/ATen.h>

#include "operator/tensors.hpp"

namespace rmsnorm {
namespace {

constexpr std::int64_t kGuardBytes = 512;
constexpr std::int64_t kPoison = 0xFF;  // every float dtype reads a run of it as NaN

}  // namespace

GuardedBuffer::GuardedBuffer(std::int64_t bytes, const at::Device& device,
                             std::int64_t misalignment)
    : bytes_(at::full({bytes + 2 * kGuardBytes + misalignment}, kPoison,
                      at::TensorOptions().dtype(at::kByte).device(device))),
      begin_(kGuardBytes + misalignment),
      size_(bytes) {}

void* GuardedBuffer::data() const {
  return static_cast<std::uint8_t*>(bytes_.mutable_data_ptr()) + begin_;
}

at::Tensor GuardedBuffer::view(Dtype dtype, at::IntArrayRef sizes) const {
  return at::from_blob(data(), sizes, bytes_.options().dtype(to_scalar_type(dtype)));
}

at::Tensor GuardedBuffer::view(Dtype dtype, at::IntArrayRef sizes, at::IntArrayRef strides) const {
  return at::from_blob(data(), sizes, strides, bytes_.options().dtype(to_scalar_type(dtype)));
}

void GuardedBuffer::poison() {
  bytes_.narrow(0, begin_, size_).fill_(kPoison);
}

std::string GuardedBuffer::damage() const {
  const auto changed = [&](std::int64_t begin, std::int64_t size) {
    return bytes_.narrow(0, begin, size).ne(kPoison).sum().item<std::int64_t>();
  };
  const std::int64_t end = begin_ + size_;
  if (const std::int64_t count = changed(0, begin_); count > 0) {
    return std::to_string(count) + " bytes were written before the start";
  }
  if (const std::int64_t count = changed(end, bytes_.numel() - end); count > 0) {
    return std::to_string(count) + " bytes were written behind the end";
  }
  return {};
}

}  // namespace rmsnorm
