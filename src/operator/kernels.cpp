#include "operator/kernels.hpp"

#include <string>

#include "kernels/implementations.h"
#include "operator/device.hpp"
#include "rmsnorm/errors.hpp"

namespace rmsnorm {

const rmsnorm_implementation* find_kernels(std::string_view name, std::int32_t device_type) {
  if (device_type == RMSNORM_CUDA) return find_cuda_kernels(name);
  if (device_type == RMSNORM_CPU && name == "rowwise") return rmsnorm_rowwise_cpu();
  if (device_type == RMSNORM_CPU && name == "tuned") return rmsnorm_tuned_cpu();
  return nullptr;
}

const rmsnorm_implementation& default_kernels(std::int32_t device_type) {
  static const rmsnorm_implementation* const cpu = find_kernels("tuned", RMSNORM_CPU);
  static const rmsnorm_implementation* const cuda = find_kernels("tuned", RMSNORM_CUDA);
  const rmsnorm_implementation* table = device_type == RMSNORM_CUDA ? cuda : cpu;
  if (table != nullptr) return *table;
  throw UnavailableError(
      "rms_norm: tensors on CUDA need CUDA kernels; this build has none; build with nvcc present "
      "(preset cuda)");
}

void require_ok(const rmsnorm_implementation& table, const char* call, std::int32_t status) {
  if (status == RMSNORM_OK) return;
  const std::string where = std::string(call) + " (" + table.name + "): ";
  if (status == RMSNORM_UNSUPPORTED)
    throw ContractError(where + "the implementation does not take these dtypes");
  if (status == RMSNORM_WORKSPACE)
    throw std::logic_error(where + "the workspace is smaller than the kernel asked for");
  const char* text = table.error_text == nullptr ? nullptr : table.error_text(status);
  throw CudaError(where + "the launch failed with status " + std::to_string(status) +
                  (text == nullptr ? "" : std::string(" (") + text + ")"));
}

}  // namespace rmsnorm
