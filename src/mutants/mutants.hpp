#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "check/autograd_check.hpp"
#include "kernels/mutants/mutants.hpp"

namespace rmsnorm {

/// The faults' entry of that name; nullptr for another.
const kernels::FaultInfo* find_fault(std::string_view name);

std::string_view name(kernels::FaultCheck check);

std::string_view name(kernels::Original original);

/// A mutant's name as a subject's: NAME of rowwise, tuned/NAME of tuned.
std::string mutant_name(kernels::Original original, std::string_view fault);

/// One of the kernels' mutants, or of the autograd function with `original` empty.
struct Mutant {
  const kernels::FaultInfo* info;
  std::optional<kernels::Original> original;

  std::string name() const;            ///< NAME or tuned/NAME
  std::string implementation() const;  ///< rowwise, tuned or rms_norm
};

/// Every mutant: of rowwise and of the autograd function, then of tuned.
std::vector<Mutant> all_mutants();
/// The mutants that `name` stands for: NAME is the fault in everything that has it, tuned/NAME in
/// tuned alone. Empty for another name.
std::vector<Mutant> find_mutants(std::string_view name);

/// The kernels of that name (NAME or tuned/NAME, `none` for NAME: without a fault) for a device
/// type. Throws UnavailableError for another name, a fault that is not in those kernels, or a build
/// without kernels for the device. A SubjectFamily.
const rmsnorm_implementation& mutant_table(std::string_view name, std::int32_t device_type);

/// rms_norm_with, with one of the faults that are in the autograd function; empty for another.
Operator mutant_operator(kernels::Fault fault);

}  // namespace rmsnorm
