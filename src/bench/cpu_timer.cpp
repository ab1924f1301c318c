#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "bench/timer.hpp"

namespace rmsnorm::bench {
namespace {

constexpr std::int64_t kLeastFlushBytes = std::int64_t{64} << 20;
constexpr std::int64_t kFlushCaches = 4;
constexpr std::int64_t kLine = 64;
constexpr std::int64_t kNearCacheBytes = std::int64_t{32} << 20;

std::int64_t last_level_cache_bytes() {
  for (const int key : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE}) {
    if (const long bytes = sysconf(key); bytes > 0) return bytes;
  }
  return kNearCacheBytes;  // some containers and virtual machines do not tell
}

class CpuTimer final : public Timer {
 public:
  double elapsed_us(const Work& work) override {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const auto end = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::micro>(end - begin).count();
  }

  double cold_us(const Work& work, Flush flush) override {
    flush == Flush::read ? read_buffer() : write_buffer();
    return elapsed_us(work);
  }

  std::string capture_refusal() const override { return "the CPU has no graphs to capture"; }

  std::unique_ptr<Replay> capture(const Work&, std::int64_t, std::int64_t) override {
    throw std::logic_error("benchmark: " + capture_refusal());
  }

  void synchronize() override {}
  std::int64_t cache_bytes() const override { return cache_bytes_; }
  std::int64_t near_cache_bytes() const override { return std::min(cache_bytes_, kNearCacheBytes); }

 private:
  /// By the threads that the calls use: each core has caches of its own.
  template <class Body>
  void over_buffer(Body body) {
    if (!buffer_) {
      buffer_ = std::make_unique<unsigned char[]>(static_cast<std::size_t>(size_));
    }
    at::parallel_for(0, size_ / kLine, 1, [&](std::int64_t begin, std::int64_t end) {
      body(buffer_.get() + begin * kLine, (end - begin) * kLine);
    });
  }
  void read_buffer() {
    over_buffer([](const unsigned char* data, std::int64_t bytes) {
      unsigned sum = 0;
      for (std::int64_t i = 0; i < bytes; i += kLine) sum += data[i];
      volatile unsigned sink = sum;
      static_cast<void>(sink);
    });
  }
  void write_buffer() {
    ++pattern_;
    over_buffer([this](unsigned char* data, std::int64_t bytes) {
      for (std::int64_t i = 0; i < bytes; i += kLine) data[i] = pattern_;
    });
  }

  std::int64_t cache_bytes_ = last_level_cache_bytes();
  std::int64_t size_ = std::max(kLeastFlushBytes, kFlushCaches* cache_bytes_) / kLine * kLine;
  std::unique_ptr<unsigned char[]> buffer_;
  unsigned char pattern_ = 0;
};

}  // namespace

std::unique_ptr<Timer> make_cpu_timer() {
  return std::make_unique<CpuTimer>();
}

std::unique_ptr<Timer> make_timer(const c10::Device& device) {
  return device.is_cuda() ? make_cuda_timer(device) : make_cpu_timer();
}

}  // namespace rmsnorm::bench
