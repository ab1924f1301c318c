#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "bench/timer.hpp"
#include "core/dtype.hpp"
#include "kernels/bench.h"
#include "operator/streams.hpp"
#include "rmsnorm/errors.hpp"

namespace rmsnorm::bench {
namespace {

constexpr std::int64_t kLeastFlushBytes = std::int64_t{320} << 20;
constexpr std::int64_t kFlushCaches = 4;
constexpr std::int64_t kFirstSpin_ns = 100'000;
constexpr std::int64_t kLongestSpin_ns = 50'000'000;
constexpr int kTries = 10;  // per length of the spin; a host thread may lose its core for a while

void require_success(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw CudaError(std::string("benchmark: ") + call + " failed with status " +
                  std::to_string(status) + " (" + cudaGetErrorString(status) + ")");
}

void require_success(std::int32_t status, const char* call) {
  require_success(static_cast<cudaError_t>(status), call);
}

class Event {
 public:
  Event() { require_success(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) {
    require_success(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  void synchronize() { require_success(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  /// Whether the device has passed it.
  bool passed() {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    require_success(status, "cudaEventQuery");
    return true;
  }
  double elapsed_us_since(const Event& begin) const {
    float milliseconds = 0;
    require_success(cudaEventElapsedTime(&milliseconds, begin.event_, event_),
                    "cudaEventElapsedTime");
    return 1e3 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaTimer final : public Timer {
 public:
  explicit CudaTimer(const c10::Device& device) : device_(device) {
    int bytes = 0;
    require_success(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device.index()),
                    "cudaDeviceGetAttribute");
    cache_bytes_ = bytes;
  }

  double elapsed_us(const Work& work) override {
    synchronize();
    start_.record(stream());
    work();
    stop_.record(stream());
    stop_.synchronize();
    return stop_.elapsed_us_since(start_);
  }

  double cold_us(const Work& work, Flush flush) override {
    if (!buffer_.defined()) allocate_buffer();
    return hidden_us(
        [&] {
          forget_what_was_kept();
          void* const data = buffer_.mutable_data_ptr();
          require_success(flush == Flush::read
                              ? rmsnorm_bench_read(data, buffer_.numel(), sink(), stream())
                              : rmsnorm_bench_write(data, buffer_.numel(), stream()),
                          "the kernel that flushes the cache");
        },
        work);
  }

  /// Device time of `work` after `before`: a kernel that only waits lets the host enqueue all of
  /// `work` first. Longer waits are tried until the device is seen to have been behind the host.
  double hidden_us(const Work& before, const Work& work) {
    for (; spin_ns_ <= kLongestSpin_ns; spin_ns_ *= 2) {
      for (int attempt = 0; attempt < kTries; ++attempt) {
        before();
        require_success(rmsnorm_bench_spin(spin_ns_, stream()), "the kernel that waits");
        start_.record(stream());
        work();
        stop_.record(stream());
        const bool host_was_late = start_.passed();
        stop_.synchronize();
        if (!host_was_late) return stop_.elapsed_us_since(start_);
      }
    }
    spin_ns_ = kFirstSpin_ns;
    throw std::runtime_error(
        "benchmark: a call must be enqueued without waiting for the device; it took the host more "
        "than " +
        std::to_string(kLongestSpin_ns / 1'000'000) +
        " ms, so the device's own time cannot be told; use protocol calls");
  }

  std::string capture_refusal() const override { return {}; }
  std::unique_ptr<Replay> capture(const Work& work, std::int64_t warmup,
                                  std::int64_t calls) override;

  void synchronize() override {
    require_success(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  }

  std::int64_t cache_bytes() const override { return cache_bytes_; }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(current_stream(device_)); }

 private:
  void allocate_buffer() {
    const at::TensorOptions options = at::TensorOptions().dtype(at::kByte).device(device_);
    buffer_ =
        at::zeros({std::max(kLeastFlushBytes, kFlushCaches * cache_bytes_ / 16 * 16)}, options);
    sink_ = at::zeros({16}, options);
  }
  void* sink() { return sink_.mutable_data_ptr(); }

  /// Lines that a kernel asked L2 to keep, on an H200 some 12 MiB of them, outlast a buffer of any
  /// size that is read or written in the ordinary way, and the next call would find them: others of
  /// their kind take their place here, and become ordinary.
  void forget_what_was_kept() {
    require_success(
        rmsnorm_bench_read_to_keep(buffer_.const_data_ptr(), buffer_.numel(), sink(), stream()),
        "the kernel that flushes the cache");
    synchronize();
    require_success(cudaCtxResetPersistingL2Cache(), "cudaCtxResetPersistingL2Cache");
  }

  c10::Device device_;
  std::int64_t cache_bytes_ = 0;
  std::int64_t spin_ns_ = kFirstSpin_ns;
  Event start_, stop_;
  at::Tensor buffer_, sink_;  // uint8
};

class CudaReplay final : public Replay {
 public:
  explicit CudaReplay(CudaTimer& timer) : timer_(timer) {}

  double elapsed_us() override {
    // Launched here and not by replay(): that one may enqueue updates of random generators too.
    const cudaGraphExec_t executable = graph_.raw_cuda_graph_exec();
    return timer_.hidden_us(
        [] {},
        [&] { require_success(cudaGraphLaunch(executable, timer_.stream()), "cudaGraphLaunch"); });
  }

  /// On the current stream, which must not be the default one.
  void capture(const Work& work, std::int64_t calls) {
    graph_.capture_begin();
    try {
      for (std::int64_t call = 0; call < calls; ++call) work();
    } catch (...) {
      // The stream is of no use to anyone until its capture has ended.
      try {
        graph_.capture_end();
      } catch (const std::exception&) {
        static_cast<void>(cudaGetLastError());
      }
      throw;
    }
    graph_.capture_end();
  }

 private:
  CudaTimer& timer_;
  at::cuda::CUDAGraph graph_;
};

std::unique_ptr<Replay> CudaTimer::capture(const Work& work, std::int64_t warmup,
                                           std::int64_t calls) {
  synchronize();  // inputs were made on the stream that is current now
  auto replay = std::make_unique<CudaReplay>(*this);
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, device_.index()));
    for (std::int64_t call = 0; call < warmup; ++call) work();
    synchronize();
    replay->capture(work, calls);
    synchronize();
  }
  return replay;
}

std::int64_t tensor_bytes(std::int64_t rows, std::int64_t cols, std::int32_t dtype) {
  return rows * cols * size_bytes(static_cast<Dtype>(dtype));
}

std::int32_t cuda_copy(const rmsnorm_forward_args* args) {
  return rmsnorm_bench_copy(args->y, args->x.data,
                            tensor_bytes(args->rows, args->cols, args->x.dtype), args->stream);
}

std::int32_t cuda_combine(const rmsnorm_backward_args* args) {
  return rmsnorm_bench_combine(args->dx, args->x.data, args->dy.data,
                               tensor_bytes(args->rows, args->cols, args->x.dtype), args->stream);
}

const char* error_text(std::int32_t status) {
  return cudaGetErrorString(static_cast<cudaError_t>(status));
}

const rmsnorm_implementation kCudaCopy = {
    .abi_version = RMSNORM_ABI_VERSION,
    .device_type = RMSNORM_CUDA,
    .name = "copy",
    .summary = "one 16-byte vector per thread; two reads and one write in the backward",
    .forward_refusal = nullptr,
    .backward_refusal = nullptr,
    .forward_workspace_bytes = nullptr,
    .backward_workspace_bytes = nullptr,
    .forward = cuda_copy,
    .backward = cuda_combine,
    .error_text = error_text,
};

}  // namespace

std::unique_ptr<Timer> make_cuda_timer(const c10::Device& device) {
  return std::make_unique<CudaTimer>(device);
}

const rmsnorm_implementation* cuda_copy_table() {
  return &kCudaCopy;
}

}  // namespace rmsnorm::bench
