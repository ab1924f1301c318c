#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "core/config.hpp"
#include "core/files.hpp"
#include "exercise/demonstration.hpp"
#include "exercise/kill_matrix.hpp"
#include "kernels/cuda/policy.hpp"
#include "support/catch.hpp"

using namespace rmsnorm;

namespace {

Config mutants_config() {
  return read_config(RMSNORM_SOURCE_DIR "/configs/mutants.yaml");
}

const c10::Device device(c10::kCPU);
const auto no_tick = [] {};

std::string described(const ControlResult& control) {
  std::string text = control.implementation;
  for (const Kill& alarm : control.false_alarms)
    text += "\n" + alarm.check + " " + alarm.case_name + ": " + alarm.reason;
  return text;
}

}  // namespace

TEST_CASE("every mutant is found by the check that concerns it, and every check is needed",
          "[matrix]") {
  const Config config = mutants_config();
  const std::vector<Case> cases = cases_by_size(config);
  std::set<std::string> needed;
  for (const Mutant& mutant : all_mutants()) {
    const MutantResult result = try_mutant(mutant, cases, config, device, no_tick);
    CAPTURE(mutant.name());
    CHECK(result.complaint() == "");
    if (result.kills.size() == 1) needed.insert(result.kills.front().check);
  }
  for (const std::string& check : check_names()) {
    CAPTURE(check);
    CHECK(needed.count(check) == 1);
  }
}

TEST_CASE("the README counts the mutants as they are", "[matrix]") {
  std::map<std::string, int> of;
  for (const Mutant& mutant : all_mutants()) ++of[mutant.implementation()];
  std::string readme = read_file(RMSNORM_SOURCE_DIR "/README.md");
  std::replace(readme.begin(), readme.end(), '\n', ' ');
  const std::string counts = std::to_string(of["rowwise"]) + " of `rowwise`, " +
                             std::to_string(of["tuned"]) + " of `tuned`, " +
                             std::to_string(of["rms_norm"]) + " of the";
  CAPTURE(counts);
  CHECK(readme.find(counts) != std::string::npos);
  CHECK(readme.find("- " + std::to_string(all_mutants().size()) + " mutants") != std::string::npos);
}

TEST_CASE("right kernels pass the mutants' grid under five seeds", "[alarms]") {
  Config config = mutants_config();
  const std::vector<Case> cases = cases_by_size(config);
  for (const std::uint64_t seed : {1u, 2u, 3u, 20240601u, 4294967295u}) {
    config.seed = seed;
    for (const std::string name :
         {"rowwise", "tuned", "reference", "mutant:none", "mutant:tuned/none"}) {
      const ControlResult control = try_control(name, cases, config, device, no_tick);
      INFO("seed " << seed << ", " << described(control));
      CHECK(control.judged >= static_cast<std::int64_t>(cases.size() * 2));
      CHECK(control.false_alarms.empty());
    }
  }
  CHECK(described(try_operator_control(config, device)) == "rms_norm");
}

TEST_CASE("the mutants' grid takes every path of tuned on CUDA", "[matrix]") {
  // Where a case in one dense piece of memory goes, at 16-byte boundaries wherever its rows are.
  std::set<kernels::cuda::ForwardPath> forward;
  std::set<std::pair<kernels::cuda::BackwardPath, bool>> backward;
  for (const Case& problem : cases_by_size(mutants_config())) {
    if (problem.dtype != Dtype::float32 || problem.layout != Layout::contiguous) continue;
    kernels::cuda::Problem plain;
    plain.rows = problem.rows;
    plain.cols = problem.cols;
    plain.aligned = problem.cols % 4 == 0;
    forward.insert(plan_forward(plain, {}).path);
    backward.insert({plan_backward(plain, {}).path, plain.aligned});
  }
  using kernels::cuda::BackwardPath;
  using kernels::cuda::ForwardPath;
  // any is for float64, two_pass for longer rows than a cluster takes and for older devices.
  for (const ForwardPath path :
       {ForwardPath::lanes, ForwardPath::block, ForwardPath::peel, ForwardPath::cluster}) {
    CAPTURE(static_cast<int>(path));
    CHECK(forward.count(path) == 1);
  }
  for (const BackwardPath path : {BackwardPath::lanes, BackwardPath::ring, BackwardPath::split}) {
    for (const bool aligned : {true, false}) {
      CAPTURE(static_cast<int>(path), aligned);
      CHECK(backward.count({path, aligned}) == 1);
    }
  }
}

TEST_CASE("a row of 257 ones shows the block's width as denominator and one of 256 hides it",
          "[demonstration]") {
  const OnesRow shown = compute_ones_row(257, 1e-6, device);
  CHECK(shown.width == 512);
  CHECK(shown.y == Approx(0.9999995).margin(1e-7));
  CHECK(shown.faulty_y == Approx(1.411458).margin(1e-6));
  CHECK(shown.faulty_mean == 0.501953125);
  CHECK(shown.faulty_denominator == Approx(0.708487).margin(1e-6));
  CHECK(shown.truth() == Hypothesis::larger);
  CHECK(std::abs(shown.dx) < 1e-5);
  CHECK(shown.faulty_dx > 0.4);
  const OnesRow hidden = compute_ones_row(256, 1e-6, device);
  CHECK(hidden.y == hidden.faulty_y);
  CHECK(hidden.dx == hidden.faulty_dx);
  CHECK(hidden.truth() == Hypothesis::same);
}
