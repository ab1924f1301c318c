#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace rmsnorm::kernels::cuda {

constexpr int kMaxDevices = 64;

/// How a kernel is launched.
struct Launch {
  unsigned blocks = 1;
  unsigned threads = 256;
  std::size_t shared_bytes = 0;
  int cluster = 1;
  bool programmatic =
      false;  ///< may start before its predecessor ends; the kernel waits for it (sm_90)
  cudaStream_t stream = nullptr;
  int device = 0;
};

/// Once per kernel and device, since it costs a call: leave to use all of a block's shared memory
/// and any cluster size.
template <auto kKernel>
cudaError_t prepare(const Launch& launch, std::size_t shared_limit) {
  static std::array<std::atomic<bool>, kMaxDevices> prepared{};
  if (prepared[launch.device].load(std::memory_order_acquire)) return cudaSuccess;
  if (launch.shared_bytes > 0) {
    // The limit holds for static and dynamic shared memory together.
    cudaFuncAttributes attributes;
    cudaError_t status = cudaFuncGetAttributes(&attributes, kKernel);
    if (status != cudaSuccess) return status;
    status = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_limit - attributes.sharedSizeBytes));
    if (status != cudaSuccess) return status;
  }
  // A later launch of the same kernel may need more than the portable size; what a device does not
  // have, the policy does not ask for.
  if (cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) !=
      cudaSuccess)
    static_cast<void>(cudaGetLastError());
  prepared[launch.device].store(true, std::memory_order_release);
  return cudaSuccess;
}

template <auto kKernel, class... Args>
cudaError_t launch_kernel(const Launch& launch, std::size_t shared_limit, const Args&... args) {
  if (launch.shared_bytes > 0 || launch.cluster > 1) {
    if (const cudaError_t status = prepare<kKernel>(launch, shared_limit); status != cudaSuccess)
      return status;
  }
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(launch.blocks);
  config.blockDim = dim3(launch.threads);
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = launch.stream;
  config.attrs = attributes;
  if (launch.programmatic) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (launch.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = static_cast<unsigned>(launch.cluster);
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = 1;
  }
  const cudaError_t status = cudaLaunchKernelEx(&config, kKernel, args...);
  static_cast<void>(
      cudaGetLastError());  // the status is returned; leave none behind for the next call to find
  return status;
}

}  // namespace rmsnorm::kernels::cuda
