#pragma once

#include <string_view>

#include "check/autograd_check.hpp"
#include "kernels/mutants/mutants.hpp"

namespace rmsnorm {

/// The faults' entry of that name; nullptr for another.
const kernels::FaultInfo* find_fault(std::string_view name);

std::string_view name(kernels::FaultCheck check);

/// The kernels with the fault of that name (`none`: without one) for a device type. Throws
/// UnavailableError for another name, a fault that is not in a kernel, or a build without kernels
/// for the device. A SubjectFamily.
const rmsnorm_implementation& mutant_table(std::string_view name, std::int32_t device_type);

/// rms_norm_with, with one of the faults that are in the autograd function; empty for another.
Operator mutant_operator(kernels::Fault fault);

}  // namespace rmsnorm
