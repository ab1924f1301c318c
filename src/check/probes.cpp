#include "check/probes.hpp"

#include <ATen/ATen.h>

namespace rmsnorm {
namespace {

bool ended_well(const Outcome& outcome, const char* call, ComparisonResult& result) {
  if (outcome.kind == Outcome::Kind::done) return true;
  worsen(result, State::error, std::string(call) + ": " + outcome.reason);
  return false;
}

void probe_nan(Trial& trial, const at::Tensor& first, ComparisonResult& result) {
  const Case& problem = trial.problem();
  const std::int64_t row = problem.rows / 2;
  trial.inputs().spoil(row, problem.cols / 2);
  const Outcome outcome = trial.run();
  trial.inputs().mend();
  if (!ended_well(outcome, "the call with a NaN in x", result)) return;
  const at::Tensor got = trial.result();
  if (trial.operation() == Operation::gamma) {
    if (!got.isnan().all().item<bool>())
      worsen(result, State::failed, "a NaN in x is missing in dgamma");
    return;
  }
  if (!got[row].isnan().all().item<bool>())
    worsen(result, State::failed, "a NaN in x is missing in its row of the result");
  const auto others_same = [&](std::int64_t begin, std::int64_t count) {
    return same_bits(got.narrow(0, begin, count), first.narrow(0, begin, count));
  };
  if (!others_same(0, row) || !others_same(row + 1, problem.rows - row - 1))
    worsen(result, State::failed, "a NaN in one row of x changed other rows of the result");
}

void probe_first_row(Trial& trial, const at::Tensor& first, ComparisonResult& result) {
  if (!ended_well(trial.run_first_row(), "the call with the first row alone", result)) return;
  if (!same_bits(trial.result()[0], first[0]))
    worsen(result, State::failed, "the first row alone gave other bits than among others");
}

void probe_single_gradient(Trial& trial, const Bounds& bounds, ComparisonResult& result) {
  const bool gamma = trial.operation() == Operation::gamma;
  const char* call = gamma ? "dgamma without dx" : "dx without dgamma";
  if (!ended_well(trial.run({.dx = !gamma, .dgamma = gamma}), call, result)) return;
  const ComparisonResult alone = trial.compare(bounds);
  if (alone.state != State::passed)
    worsen(result, alone.state, std::string(call) + ": " + alone.reason);
}

}  // namespace

void probe(Trial& trial, const Bounds& bounds, const at::Tensor& first, ComparisonResult& result) {
  if (trial.operation() == Operation::forward) {
    if (trial.problem().rows > 1) probe_first_row(trial, first, result);
  } else if (trial.problem().gamma != GammaKind::none) {
    probe_single_gradient(trial, bounds, result);
  }
  probe_nan(trial, first, result);
  if (const std::string damage = trial.damage(); !damage.empty())
    worsen(result, State::failed, "in a further call, " + damage);
}

}  // namespace rmsnorm
