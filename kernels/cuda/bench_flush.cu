#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/bench.h"
#include "kernels/cuda/vector.cuh"

namespace rmsnorm::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr unsigned kBlocks = 2048;  // enough to fill any device several times; threads stride

template <bool kKeep>
__global__ void read_kernel(const uint4* __restrict__ buffer, std::int64_t vectors,
                            unsigned* __restrict__ sink) {
  unsigned bits = 0;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors;
       i += stride) {
    const uint4 value = kept<kKeep>(buffer)[i];
    bits |= value.x | value.y | value.z | value.w;
  }
  if (bits != 0) *sink = bits;  // never: the buffer is zero, which the compiler cannot know
}

__global__ void write_kernel(uint4* __restrict__ buffer, std::int64_t vectors) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors;
       i += stride) {
    buffer[i] = make_uint4(0, 0, 0, 0);
  }
}

template <bool kKeep>
cudaError_t launch_read(const void* buffer, std::int64_t bytes, void* sink, void* stream) {
  read_kernel<kKeep><<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint4*>(buffer), bytes / static_cast<std::int64_t>(sizeof(uint4)),
      static_cast<unsigned*>(sink));
  return cudaGetLastError();
}

__device__ std::int64_t now_ns() {
  std::int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void spin_kernel(std::int64_t nanoseconds) {
  const std::int64_t begin = now_ns();
#pragma unroll 1
  while (now_ns() - begin < nanoseconds) {
  }
}

}  // namespace
}  // namespace rmsnorm::kernels::cuda

int32_t rmsnorm_bench_read(const void* buffer, int64_t bytes, void* sink, void* stream) {
  return rmsnorm::kernels::cuda::launch_read<false>(buffer, bytes, sink, stream);
}

int32_t rmsnorm_bench_read_to_keep(const void* buffer, int64_t bytes, void* sink, void* stream) {
  return rmsnorm::kernels::cuda::launch_read<true>(buffer, bytes, sink, stream);
}

int32_t rmsnorm_bench_write(void* buffer, int64_t bytes, void* stream) {
  using namespace rmsnorm::kernels::cuda;
  write_kernel<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<uint4*>(buffer), bytes / static_cast<std::int64_t>(sizeof(uint4)));
  return cudaGetLastError();
}

int32_t rmsnorm_bench_spin(int64_t nanoseconds, void* stream) {
  rmsnorm::kernels::cuda::spin_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(nanoseconds);
  return cudaGetLastError();
}
