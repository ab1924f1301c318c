#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/fault.hpp"
#include "rmsnorm/implementation.h"

// The kernels with one fault each. A library of their own, which the product does not link.

namespace rmsnorm::kernels {

enum class FaultPass { forward, backward, both, autograd };
enum class FaultCheck { forward, backward, gamma, autograd };

struct FaultInfo {
  Fault fault;
  const char* name;
  const char* family;
  FaultPass pass;
  FaultCheck check;    ///< the check that must find it
  const char* source;  ///< where such a fault was seen or warned of
  const char* what;
};

/// Every fault but `none`.
inline constexpr FaultInfo kFaults[] = {
#define RMSNORM_FAULT_INFO(name, family, pass, check, source, what) \
  {Fault::name, #name, #family, FaultPass::pass, FaultCheck::check, source, what},
    RMSNORM_FAULTS(RMSNORM_FAULT_INFO)
#undef RMSNORM_FAULT_INFO
};
inline constexpr std::size_t kFaultCount = sizeof(kFaults) / sizeof(kFaults[0]);

/// `F` if it is in the forward (the backward), else none.
constexpr Fault forward_fault(Fault fault) {
  if (fault == Fault::none) return fault;
  const FaultPass pass = kFaults[static_cast<std::size_t>(fault) - 1].pass;
  return pass == FaultPass::forward || pass == FaultPass::both ? fault : Fault::none;
}
constexpr Fault backward_fault(Fault fault) {
  if (fault == Fault::none) return fault;
  const FaultPass pass = kFaults[static_cast<std::size_t>(fault) - 1].pass;
  return pass == FaultPass::backward || pass == FaultPass::both ? fault : Fault::none;
}

/// What a mutant is a copy of.
enum class Original { rowwise, tuned };

/// Whether there is such a mutant: of rowwise every fault that is in a kernel, of tuned those of
/// tuned_faults.hpp.
bool has_mutant(Original original, Fault fault);

/// The original with the fault. rowwise: float32 or float16 x with gamma of the same dtype or none,
/// and bfloat16 x with float32 gamma. tuned: one dtype, float16 where the fault needs it, else
/// float32, with gamma of the same or none; on the CPU without vector instructions. Fault::none
/// gives the original itself, compiled with the mutants. nullptr where has_mutant says no, or this
/// build has no kernels for the device.
const rmsnorm_implementation* find_mutant(Original original, Fault fault, std::int32_t device_type);

/// The product's table whose bits find_mutant(original, Fault::none, ...) gives.
const rmsnorm_implementation* find_original(Original original, std::int32_t device_type);

}  // namespace rmsnorm::kernels
