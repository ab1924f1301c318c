#include "check/memory.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace rmsnorm {
namespace {

constexpr std::int64_t kTakenForGranted = std::int64_t{1} << 30;

/// The first number of a file, or the one behind `key` in it.
std::optional<std::int64_t> number_in(const char* path, const std::string& key = {}) {
  std::ifstream file(path);
  std::string word;
  while (!key.empty() && file >> word && word != key) {
  }
  std::int64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

std::int64_t available_on_cpu() {
  std::int64_t available = std::numeric_limits<std::int64_t>::max();
  if (const auto kib = number_in("/proc/meminfo", "MemAvailable:")) available = *kib * 1024;
  // No limit reads as the word "max".
  const auto limit = number_in("/sys/fs/cgroup/memory.max"),
             used = number_in("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, std::max<std::int64_t>(0, *limit - *used));
  return available;
}

double gib(std::int64_t bytes) {
  return static_cast<double>(bytes) / (std::int64_t{1} << 30);
}

}  // namespace

std::int64_t available_bytes(const at::Device& device) {
  if (device.is_cpu()) return available_on_cpu();
  c10::DeviceAllocator& allocator = *c10::getDeviceAllocator(device.type());
  allocator.emptyCache();
  return static_cast<std::int64_t>(allocator.getMemoryInfo(device.index()).first);
}

void require_memory(std::int64_t bytes, const at::Device& device) {
  if (bytes <= kTakenForGranted) return;
  const std::int64_t available = available_bytes(device);
  if (bytes <= available) return;
  throw MemoryShortage(fmt::format("needs {:.1f} GiB of memory on {}, which has {:.1f} GiB left",
                                   gib(bytes), device.str(), gib(available)));
}

}  // namespace rmsnorm
