#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <malloc.h>

#include <cstdint>

namespace rmsnorm::test {

/// What the noise of libraries may add to the heap: far below what one kept tensor per call would.
constexpr std::int64_t kMemoryNoise = std::int64_t{1} << 20;

/// Bytes that live tensors take: of libtorch's allocator on CUDA, of the heap on the CPU.
inline std::int64_t allocated_bytes(const c10::Device& device) {
  if (!device.is_cpu()) {
    const auto stats = c10::getDeviceAllocator(device.type())
                           ->getDeviceStats(device.has_index() ? device.index() : 0);
    return stats.allocated_bytes[0].current;
  }
  const auto info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

}  // namespace rmsnorm::test
