#include "check/check.hpp"

#include <ATen/ATen.h>

#include "check/probes.hpp"
#include "check/trial.hpp"
#include "core/files.hpp"

namespace rmsnorm {
namespace {

ComparisonResult judged(State state, const std::string& reason) {
  ComparisonResult result;
  result.state = state;
  result.reason = reason;
  return result;
}

ComparisonResult check_case_or_throw(Operation operation, const Case& problem, Runner& runner,
                                     const Config& config, const at::Device& device) {
  if (operation == Operation::gamma && problem.gamma == GammaKind::none) {
    return judged(State::skipped, "the case has no gamma, so there is no dgamma");
  }
  Trial trial(operation, problem, runner, config, device);
  const Outcome outcome = trial.run();
  if (outcome.kind == Outcome::Kind::refused) return judged(State::unimplemented, outcome.reason);
  if (outcome.kind == Outcome::Kind::error) return judged(State::error, outcome.reason);

  const Bounds bounds = bounds_for(operation, problem, config);
  ComparisonResult result = trial.compare(bounds);
  if (operation == Operation::forward) {
    const ComparisonResult rstd = trial.compare_rstd();
    if (rstd.state != State::passed) worsen(result, rstd.state, "rstd: " + rstd.reason);
  }
  if (const std::string damage = trial.damage(); !damage.empty())
    worsen(result, State::failed, damage);

  const at::Tensor first = trial.result().clone();
  const Outcome again = trial.run();
  if (again.kind != Outcome::Kind::done) {
    worsen(result, State::error, "the second call with the same inputs: " + again.reason);
  } else if (!same_bits(first, trial.result())) {
    worsen(result, State::failed, "a second call with the same inputs gave other bits");
  }
  if (problem.inputs != InputKind::normal) probe(trial, bounds, first, result);
  return result;
}

}  // namespace

std::string_view command_name(Operation operation) {
  switch (operation) {
    case Operation::forward:
      return "check-forward";
    case Operation::backward:
      return "check-backward";
    case Operation::gamma:
      break;
  }
  return "check-gamma";
}

Bounds bounds_for(Operation operation, const Case& problem, const Config& config) {
  Bounds bounds;
  const bool gamma = operation == Operation::gamma;
  bounds.dtype = gamma && problem.gamma == GammaKind::float32 ? Dtype::float32 : problem.dtype;
  bounds.elementwise = config.tolerance.at(problem.dtype);
  bounds.scale_atol_by_row = problem.inputs != InputKind::normal;
  bounds.one_rounding = problem.inputs != InputKind::normal;
  bounds.terms = gamma ? problem.rows + problem.cols
                       : problem.cols;  // dgamma's addends hold a rstd of cols terms
  return bounds;
}

ComparisonResult check_case(Operation operation, const Case& problem, Runner& runner,
                            const Config& config, const at::Device& device) {
  try {
    return check_case_or_throw(operation, problem, runner, config, device);
  } catch (const MemoryShortage& shortage) {
    return judged(State::skipped, shortage.what());
  } catch (const c10::OutOfMemoryError& error) {
    // Not the implementation's own, which its runner catches: of what the check itself allocates.
    return judged(State::skipped,
                  "memory ran out in the check itself: " + first_line(error.what()));
  } catch (const std::exception& error) {
    return judged(State::error, first_line(error.what()));
  }
}

std::vector<std::string> hints(Operation operation, const std::vector<CaseState>& results) {
  bool any_failed = false, power_failed = false, other_failed = false, all_errors = true;
  for (const CaseState& result : results) {
    if (result.state < State::failed) continue;
    any_failed = true;
    all_errors = all_errors && result.state == State::error;
    const std::int64_t cols = result.problem.cols;
    ((cols & (cols - 1)) == 0 ? power_failed : other_failed) = true;
  }
  if (!any_failed || all_errors) return {};
  switch (operation) {
    case Operation::forward:
      if (other_failed && !power_failed) {
        return {
            "fails at 257 columns but not at 256: look at the denominator (N, not the block's "
            "width), the column "
            "mask, the row offset row * N"};
      }
      return {
          "look at the sum of squares, eps inside the root, gamma's index, the output's rounding"};
    case Operation::backward:
      return {
          "if check-forward passes: look at the r^3 term, mean(u*x) over the N columns, the saved "
          "rstd"};
    case Operation::gamma:
      return {
          "if only dgamma fails: look at the partial products, the second pass, its scratch, a sum "
          "over rows and "
          "not an average"};
  }
  return {};
}

}  // namespace rmsnorm
