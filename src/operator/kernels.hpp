#pragma once

#include <cstdint>
#include <string_view>

#include "rmsnorm/implementation.h"

namespace rmsnorm {

/// The built-in kernels of that name (`rowwise`, `tuned`) for a device type (rmsnorm_device_type);
/// nullptr if there are none.
const rmsnorm_implementation* find_kernels(std::string_view name, std::int32_t device_type);

/// The table that rms_norm uses on a device type. Throws UnavailableError in a build without
/// kernels for it.
const rmsnorm_implementation& default_kernels(std::int32_t device_type);

/// libtorch's intra-op threads, lent to a CPU implementation.
const rmsnorm_executor& cpu_executor();

/// Throws CudaError, or ContractError for RMSNORM_UNSUPPORTED, unless `status` is RMSNORM_OK; the
/// message names the implementation and the call.
void require_ok(const rmsnorm_implementation& table, const char* call, std::int32_t status);

}  // namespace rmsnorm
