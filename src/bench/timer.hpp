#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "rmsnorm/implementation.h"

// The clocks of the benchmark, one per kind of device. cuda_timer.cpp or no_cuda_timer.cpp is the
// seam between builds with and without CUDA.

namespace rmsnorm::bench {

using Work = std::function<void()>;

/// How the device's cache is emptied: by reading a buffer of several times its size, which leaves
/// it full of clean lines, or by writing one, whose dirty lines drain while the next call runs.
/// What a kernel asked the cache to keep, which outlasts both, is taken away before.
enum class Flush { read, write };

/// Captured work, ready to be replayed. Results of the work live as long as this.
class Replay {
 public:
  virtual ~Replay() = default;
  /// Device time of one replay of all captured calls.
  virtual double elapsed_us() = 0;
};

class Timer {
 public:
  virtual ~Timer() = default;

  /// Time from the first to the last operation of `work` on the current stream, which is idle
  /// before; what the host needs to enqueue them is in it where the device has to wait for it.
  virtual double elapsed_us(const Work& work) = 0;

  /// Device time of `work` alone on a flushed cache: the host's latency is hidden, or this throws
  /// std::runtime_error.
  virtual double cold_us(const Work& work, Flush flush) = 0;

  /// Why work cannot be captured on this device, as a phrase; empty when it can.
  virtual std::string capture_refusal() const = 0;

  /// Runs `work` `warmup` times, then captures `calls` runs of it.
  virtual std::unique_ptr<Replay> capture(const Work& work, std::int64_t warmup,
                                          std::int64_t calls) = 0;

  /// Returns when all work that was enqueued is done.
  virtual void synchronize() = 0;

  /// Of the last-level cache.
  virtual std::int64_t cache_bytes() const = 0;
  /// What a call can count on of it at most: a processor's cores share it, and it may be told of a
  /// whole machine of which this one is a small part.
  virtual std::int64_t near_cache_bytes() const { return cache_bytes(); }
};

std::unique_ptr<Timer> make_cpu_timer();

/// The timer of a CUDA device. Throws CudaError, or UnavailableError in a build without CUDA.
std::unique_ptr<Timer> make_cuda_timer(const c10::Device& device);

std::unique_ptr<Timer> make_timer(const c10::Device& device);

/// The copy that times are compared with, as a table like any other, never part of checks: forward
/// copies x's bytes to y, backward reads x and dy and writes their exclusive or to dx. Dense rows
/// aligned to 16 bytes only; rstd, gamma and dgamma are left alone. nullptr in a build without
/// CUDA.
const rmsnorm_implementation* cuda_copy_table();
const rmsnorm_implementation& copy_table(std::int32_t device_type);

}  // namespace rmsnorm::bench
