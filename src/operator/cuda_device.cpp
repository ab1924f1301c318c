#include <ATen/cuda/EmptyTensor.h>
#include <cuda_runtime.h>

#include <fstream>
#include <regex>

#include "kernels/implementations.h"
#include "operator/device.hpp"
#include "rmsnorm/errors.hpp"

namespace rmsnorm {
namespace {

void require_success(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw CudaError(std::string(call) + ": failed with status " + std::to_string(status) + " (" +
                  cudaGetErrorString(status) + ")");
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  std::smatch match;
  if (std::regex_search(line, match, std::regex("[0-9]+\\.[0-9]+(\\.[0-9]+)?"))) return match.str();
  int version = 0;
  require_success(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  return "CUDA " + version_text(version);
}

/// Makes a device current for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int index) {
    require_success(cudaGetDevice(&previous_), "cudaGetDevice");
    require_success(cudaSetDevice(index), "cudaSetDevice");
  }
  ~DeviceScope() { static_cast<void>(cudaSetDevice(previous_)); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace

const rmsnorm_implementation* find_cuda_kernels(std::string_view name) {
  if (name == "tuned") return rmsnorm_tuned_cuda();
  return name == "rowwise" ? rmsnorm_rowwise_cuda() : nullptr;
}

at::Tensor empty_on_cuda(at::IntArrayRef sizes, at::ScalarType type, const c10::Device& device) {
  return at::Tensor(at::detail::empty_cuda(sizes, type, device, std::nullopt));
}

std::string cuda_problem(std::int32_t device_index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (status == cudaErrorInsufficientDriver) {
    return "the NVIDIA driver is missing or older than CUDA " + cuda_runtime_version() +
           "; install a newer driver, or use --device cpu";
  }
  if (status != cudaSuccess || count == 0) {
    return std::string("no CUDA device was found (") + cudaGetErrorString(status) +
           "); check nvidia-smi and, in a container, its --gpus option, or use --device cpu";
  }
  if (device_index >= count) {
    return "device cuda:" + std::to_string(device_index) + " does not exist; this machine has " +
           std::to_string(count) + ", cuda:0 to cuda:" + std::to_string(count - 1);
  }
  const DeviceScope scope(device_index);
  const auto probe = static_cast<cudaError_t>(rmsnorm_cuda_probe());
  if (probe == cudaSuccess) return {};
  const CudaFacts facts = cuda_facts(device_index);
  return facts.device_name + " has compute capability sm_" + std::to_string(facts.sm) +
         ", for which the kernels do not run (" + cudaGetErrorString(probe) +
         "); they were compiled for " + rmsnorm_cuda_architectures() +
         ": configure with -DRMSNORM_CUDA_ARCHITECTURES=" + std::to_string(facts.sm);
}

CudaFacts cuda_facts(std::int32_t device_index) {
  cudaDeviceProp properties{};
  require_success(cudaGetDeviceProperties(&properties, device_index), "cudaGetDeviceProperties");
  return {.device_name = properties.name,
          .sm = properties.major * 10 + properties.minor,
          .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
          .runtime = cuda_runtime_version(),
          .driver = driver_version()};
}

std::string cuda_runtime_version() {
  int version = 0;
  require_success(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return version_text(version);
}

}  // namespace rmsnorm
