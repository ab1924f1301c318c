#include "check/buffers.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "operator/tensors.hpp"

namespace rmsnorm {
namespace {

constexpr std::int64_t kGuardBytes = 512;
constexpr std::int64_t kCompareElements = std::int64_t{1} << 26;  // at a time
constexpr std::int64_t kPoison = 0xFF;  // every float dtype reads a run of it as NaN

at::ScalarType integer_of_size(std::int64_t bytes) {
  switch (bytes) {
    case 8:
      return at::kLong;
    case 4:
      return at::kInt;
    case 2:
      return at::kShort;
    default:
      return at::kByte;
  }
}

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

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  if (a.numel() == 0) return true;
  if (a.numel() > kCompareElements && a.dim() > 0) {
    if (a.size(0) == 1) return same_bits(a[0], b[0]);
    const std::int64_t part = std::max<std::int64_t>(1, kCompareElements / (a.numel() / a.size(0)));
    for (std::int64_t begin = 0; begin < a.size(0); begin += part) {
      const std::int64_t count = std::min(part, a.size(0) - begin);
      if (!same_bits(a.narrow(0, begin, count), b.narrow(0, begin, count))) return false;
    }
    return true;
  }
  const at::ScalarType bits = integer_of_size(static_cast<std::int64_t>(a.element_size()));
  return at::equal(a.contiguous().view(bits), b.contiguous().view(bits));
}

}  // namespace rmsnorm
