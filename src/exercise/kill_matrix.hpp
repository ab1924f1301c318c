#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/cases.hpp"
#include "core/comparison.hpp"
#include "mutants/mutants.hpp"

namespace rmsnorm {

/// What one check found of one mutant: the smallest case that failed.
struct Kill {
  std::string check;  ///< a command's name, or autograd
  std::string case_name, reason;
};

struct MutantResult {
  Mutant mutant;
  std::vector<Kill> kills;  ///< one for each check that failed
  std::string error;        ///< the first call that could not be judged; no proof of anything

  bool killed() const { return !kills.empty(); }
  bool killed_by(std::string_view check) const;
  /// The kill by the smallest case.
  const Kill* smallest() const;
  /// Why the checks must not be trusted with this fault, as a phrase; empty when its own check
  /// fails it.
  std::string complaint() const;
};

/// The cases of a config, smallest first.
std::vector<Case> cases_by_size(const Config& config);

/// Runs every check that can see the fault over `cases`, each until the first case fails. `tick` is
/// called before each case.
MutantResult try_mutant(const Mutant& mutant, const std::vector<Case>& cases, const Config& config,
                        const c10::Device& device, const std::function<void()>& tick);

/// A right implementation under the same checks: every case that does not pass is a false alarm.
struct ControlResult {
  std::string implementation;
  std::int64_t judged = 0;
  std::vector<Kill> false_alarms;
};
ControlResult try_control(const std::string& implementation, const std::vector<Case>& cases,
                          const Config& config, const c10::Device& device,
                          const std::function<void()>& tick);
/// The autograd function of the product.
ControlResult try_operator_control(const Config& config, const c10::Device& device);

/// The mutants' kernels without a fault: bit for bit the original's, on dense inputs of the cases'
/// shapes.
ControlResult try_identity_control(kernels::Original original, const std::vector<Case>& cases,
                                   const c10::Device& device);

/// The columns of the matrix.
const std::vector<std::string>& check_names();

}  // namespace rmsnorm
