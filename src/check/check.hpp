#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "check/runner.hpp"
#include "core/cases.hpp"
#include "core/comparison.hpp"
#include "core/config.hpp"

namespace rmsnorm {

/// What a check looks at. The three checks are one path with this fixed.
enum class Operation { forward, backward, gamma };

/// `check-forward`, ...
std::string_view command_name(Operation operation);

/// The bounds that a result of the case is held to, from the config's tolerances, the result's
/// dtype and what it sums.
Bounds bounds_for(Operation operation, const Case& problem, const Config& config);

/// Runs one case through an implementation and judges it.
///
/// Makes the inputs, poisons every output and the workspace, runs the forward and, but for
/// Operation::forward, the backward with the rstd that the forward left; then compares y (and
/// rstd), dx or dgamma with the float64 oracle, verifies guards and inputs, and runs the call once
/// more, which must give the same bits. A case for which the memory does not suffice is skipped,
/// before anything is allocated. Never throws for what the implementation does: that becomes
/// the state and reason.
ComparisonResult check_case(Operation operation, const Case& problem, Runner& runner,
                            const Config& config, const at::Device& device);

/// What failing checks together point at, in the words of the tutorial; empty when nothing failed.
/// `results` are of one implementation.
struct CaseState {
  Case problem;
  State state;
};
std::vector<std::string> hints(Operation operation, const std::vector<CaseState>& results);

}  // namespace rmsnorm
