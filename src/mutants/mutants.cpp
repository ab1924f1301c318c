#include "mutants/mutants.hpp"

#include <string>

#include "operator/rms_norm_function.hpp"

namespace rmsnorm {

using kernels::Fault;
using kernels::FaultInfo;
using kernels::Original;

namespace {

constexpr std::string_view kTunedPrefix = "tuned/";

}  // namespace

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

std::string_view name(Original original) {
  return original == Original::tuned ? "tuned" : "rowwise";
}

std::string mutant_name(Original original, std::string_view fault) {
  return std::string(original == Original::tuned ? kTunedPrefix : "") + std::string(fault);
}

std::string Mutant::name() const {
  return mutant_name(original.value_or(Original::rowwise), info->name);
}

std::string Mutant::implementation() const {
  return original ? std::string(rmsnorm::name(*original)) : "rms_norm";
}

std::vector<Mutant> all_mutants() {
  std::vector<Mutant> mutants;
  for (const FaultInfo& info : kernels::kFaults) {
    if (info.pass == kernels::FaultPass::autograd) {
      mutants.push_back({&info, std::nullopt});
    } else {
      mutants.push_back({&info, Original::rowwise});
    }
  }
  for (const FaultInfo& info : kernels::kFaults) {
    if (kernels::has_mutant(Original::tuned, info.fault))
      mutants.push_back({&info, Original::tuned});
  }
  return mutants;
}

std::vector<Mutant> find_mutants(std::string_view name) {
  std::vector<Mutant> found;
  for (const Mutant& mutant : all_mutants()) {
    if (name == mutant.info->name || name == mutant.name()) found.push_back(mutant);
  }
  return found;
}

const rmsnorm_implementation& mutant_table(std::string_view name, std::int32_t device_type) {
  const std::string where = "mutant:" + std::string(name) + ": ";
  const bool tuned = name.starts_with(kTunedPrefix);
  const Original original = tuned ? Original::tuned : Original::rowwise;
  if (tuned) name.remove_prefix(kTunedPrefix.size());
  const FaultInfo* info = find_fault(name);
  if (info != nullptr && info->pass == kernels::FaultPass::autograd) {
    throw UnavailableError(where +
                           "this fault is in the autograd function, which no kernel's check sees; "
                           "run exercise --mutants " +
                           std::string(name));
  }
  const Fault fault = info == nullptr ? Fault::none : info->fault;
  if ((info == nullptr && name != "none") || !kernels::has_mutant(original, fault)) {
    std::string known;
    for (const FaultInfo& other : kernels::kFaults) {
      if (kernels::has_mutant(original, other.fault))
        known += ", " + mutant_name(original, other.name);
    }
    throw UnavailableError(where + "must be one of " + mutant_name(original, "none") + known);
  }
  const auto* table = kernels::find_mutant(original, fault, device_type);
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
