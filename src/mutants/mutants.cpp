#include "mutants/mutants.hpp"

#include <string>

#include "operator/rms_norm_function.hpp"

namespace rmsnorm {

using kernels::Fault;
using kernels::FaultInfo;

const FaultInfo* find_fault(std::string_view name) {
  for (const FaultInfo& info : kernels::kFaults) {
    if (name == info.name) return &info;
  }
  return nullptr;
}

std::string_view name(kernels::FaultCheck check) {
  switch (check) {
    case kernels::FaultCheck::forward:
      return "check-forward";
    case kernels::FaultCheck::backward:
      return "check-backward";
    case kernels::FaultCheck::gamma:
      return "check-gamma";
    case kernels::FaultCheck::autograd:
      break;
  }
  return "autograd";
}

const rmsnorm_implementation& mutant_table(std::string_view name, std::int32_t device_type) {
  const std::string where = "mutant:" + std::string(name) + ": ";
  const FaultInfo* info = find_fault(name);
  if (info == nullptr && name != "none") {
    std::string known;
    for (const FaultInfo& fault : kernels::kFaults) {
      if (fault.pass != kernels::FaultPass::autograd) known += std::string(", ") + fault.name;
    }
    throw UnavailableError(where + "must be one of none" + known);
  }
  if (info != nullptr && info->pass == kernels::FaultPass::autograd) {
    throw UnavailableError(where +
                           "this fault is in the autograd function, which no kernel's check sees; "
                           "run exercise --mutants " +
                           std::string(name));
  }
  const auto* table =
      kernels::find_mutant(info == nullptr ? Fault::none : info->fault, device_type);
  if (table == nullptr)
    throw UnavailableError(where +
                           "this build has no CUDA kernels; build with nvcc present "
                           "(preset cuda)");
  return *table;
}

Operator mutant_operator(Fault fault) {
  switch (fault) {
    case Fault::eps_gradient_for_gamma:
      return rms_norm_with_fault<Fault::eps_gradient_for_gamma>;
    case Fault::dgamma_when_frozen:
      return rms_norm_with_fault<Fault::dgamma_when_frozen>;
    case Fault::calls_not_counted:
      return rms_norm_with_fault<Fault::calls_not_counted>;
    case Fault::saved_x_alias:
      return rms_norm_with_fault<Fault::saved_x_alias>;
    case Fault::saved_gamma_alias:
      return rms_norm_with_fault<Fault::saved_gamma_alias>;
    case Fault::rstd_constant:
      return rms_norm_with_fault<Fault::rstd_constant>;
    case Fault::no_graph:
      return rms_norm_with_fault<Fault::no_graph>;
    default:
      return {};
  }
}

}  // namespace rmsnorm
