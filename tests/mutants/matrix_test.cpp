#include <algorithm>
#include <compare>
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
  using kernels::cuda::BackwardPath;
  using kernels::cuda::ForwardPath;
  struct Way {
    BackwardPath path;
    bool aligned, joined = false, cluster = false;
    auto operator<=>(const Way&) const = default;
  };
  std::set<std::pair<ForwardPath, bool>> forward;
  std::set<Way> backward;
  for (const Case& problem : cases_by_size(mutants_config())) {
    // The two layouts of which the plan is known without their addresses: memory starts at 16-byte
    // boundaries, and rows of heads do not follow each other.
    const bool dense = problem.layout == Layout::contiguous;
    if (problem.dtype != Dtype::float32 || (!dense && problem.layout != Layout::heads)) continue;
    kernels::cuda::Problem plain;
    plain.rows = problem.rows;
    plain.cols = problem.cols;
    plain.aligned = problem.cols % 4 == 0;
    plain.dense = dense;
    plain.one_shift = dense && !plain.aligned;
    forward.insert({plan_forward(plain, {}).path, plain.aligned});
    const kernels::cuda::BackwardPlan plan = plan_backward(plain, {});
    const bool joined = plan.path == BackwardPath::ring && !plain.aligned && !plain.one_shift;
    backward.insert({plan.path, plain.aligned, joined, plan.cluster > 1});
  }
  // any is for float64 and for older devices, two_pass for these alone.
  for (const auto& [path, aligned] :
       std::initializer_list<std::pair<ForwardPath, bool>>{{ForwardPath::lanes, true},
                                                           {ForwardPath::block, true},
                                                           {ForwardPath::ring, true},
                                                           {ForwardPath::cluster, true},
                                                           {ForwardPath::cluster, false},
                                                           {ForwardPath::long_rows, true},
                                                           {ForwardPath::long_rows, false},
                                                           {ForwardPath::tiny, false},
                                                           {ForwardPath::frame, false},
                                                           {ForwardPath::peel_warp, false},
                                                           {ForwardPath::peel, false}}) {
    CAPTURE(static_cast<int>(path), aligned);
    CHECK(forward.count({path, aligned}) == 1);
  }
  for (const Way& way :
       {Way{BackwardPath::lanes, true}, Way{BackwardPath::lanes, false},
        Way{BackwardPath::groups, true}, Way{BackwardPath::ring, true},
        Way{BackwardPath::ring, true, false, true}, Way{BackwardPath::ring, false},
        Way{BackwardPath::ring, false, false, true}, Way{BackwardPath::ring, false, true},
        Way{BackwardPath::frame, false}, Way{BackwardPath::tiny, false},
        Way{BackwardPath::long_rows, true}, Way{BackwardPath::long_rows, false},
        Way{BackwardPath::split, true}, Way{BackwardPath::split, false}}) {
    CAPTURE(static_cast<int>(way.path), way.aligned, way.joined, way.cluster);
    CHECK(backward.count(way) == 1);
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
