#include "exercise/kill_matrix.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <tuple>

#include "check/check.hpp"
#include "operator/autograd.hpp"
#include "operator/execution.hpp"
#include "operator/kernels.hpp"
#include "operator/tensors.hpp"

namespace rmsnorm {
namespace {

constexpr Operation kOperations[] = {Operation::forward, Operation::backward, Operation::gamma};
constexpr const char* kAutograd = "autograd";
constexpr double kIdentityEps = 1e-6;

std::int32_t device_type(const c10::Device& device) {
  return device.is_cuda() ? RMSNORM_CUDA : RMSNORM_CPU;
}

MutantResult try_autograd_mutant(const Mutant& mutant, const Config& config,
                                 const c10::Device& device) {
  MutantResult result{.mutant = mutant, .kills = {}, .error = {}};
  const ComparisonResult found =
      check_autograd(mutant_operator(mutant.info->fault), default_kernels(device_type(device)),
                     device, config.epsilon);
  if (found.state == State::failed)
    result.kills.push_back({kAutograd, "2x3x33-float64", found.reason});
  if (found.state == State::error) result.error = found.reason;
  return result;
}

}  // namespace

const std::vector<std::string>& check_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Operation operation : kOperations) all.emplace_back(command_name(operation));
    all.emplace_back(kAutograd);
    return all;
  }();
  return names;
}

bool MutantResult::killed_by(std::string_view check) const {
  return std::any_of(kills.begin(), kills.end(),
                     [check](const Kill& kill) { return kill.check == check; });
}

const Kill* MutantResult::smallest() const {
  const Kill* first = nullptr;
  for (const Kill& kill : kills) {
    if (first == nullptr || kill.check == name(mutant.info->check)) first = &kill;
  }
  return first;
}

std::string MutantResult::complaint() const {
  const std::string found = std::string(name(mutant.info->check)), what = "mutant " + mutant.name();
  if (killed_by(found)) return {};
  if (killed()) return what + " was not found by " + found;
  if (!error.empty()) return what + " ended in an error, which proves nothing: " + error;
  return what + " survived";
}

std::vector<Case> cases_by_size(const Config& config) {
  std::vector<Case> cases = expand_cases(config);
  std::stable_sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) {
    return std::pair(a.rows * a.cols, a.rows) < std::pair(b.rows * b.cols, b.rows);
  });
  return cases;
}

MutantResult try_mutant(const Mutant& mutant, const std::vector<Case>& cases, const Config& config,
                        const c10::Device& device, const std::function<void()>& tick) {
  if (!mutant.original) {
    tick();
    return try_autograd_mutant(mutant, config, device);
  }
  MutantResult result{.mutant = mutant, .kills = {}, .error = {}};
  InProcessRunner runner(
      {"mutant:" + mutant.name(), &mutant_table(mutant.name(), device_type(device)), nullptr});
  for (const Operation operation : kOperations) {
    for (const Case& problem : cases) {
      tick();
      const ComparisonResult found = check_case(operation, problem, runner, config, device);
      if (found.state == State::error && result.error.empty())
        result.error = problem.name() + ": " + found.reason;
      if (found.state != State::failed) continue;
      result.kills.push_back({std::string(command_name(operation)), problem.name(), found.reason});
      break;
    }
  }
  return result;
}

ControlResult try_control(const std::string& implementation, const std::vector<Case>& cases,
                          const Config& config, const c10::Device& device,
                          const std::function<void()>& tick) {
  ControlResult result{.implementation = implementation, .judged = 0, .false_alarms = {}};
  InProcessRunner runner(find_subject(implementation, device_type(device)));
  for (const Operation operation : kOperations) {
    for (const Case& problem : cases) {
      tick();
      const ComparisonResult found = check_case(operation, problem, runner, config, device);
      if (found.state == State::skipped || found.state == State::unimplemented) continue;
      ++result.judged;
      if (found.state != State::passed)
        result.false_alarms.push_back(
            {std::string(command_name(operation)), problem.name(), found.reason});
    }
  }
  return result;
}

ControlResult try_operator_control(const Config& config, const c10::Device& device) {
  ControlResult result{.implementation = "rms_norm", .judged = 1, .false_alarms = {}};
  const ComparisonResult found =
      check_autograd(rms_norm_with, default_kernels(device_type(device)), device, config.epsilon);
  if (found.state != State::passed) result.false_alarms.push_back({kAutograd, "", found.reason});
  return result;
}

ControlResult try_identity_control(kernels::Original original, const std::vector<Case>& cases,
                                   const c10::Device& device) {
  const std::string control_name = mutant_name(original, "none");
  ControlResult result{.implementation = "mutant:" + control_name, .judged = 0, .false_alarms = {}};
  const rmsnorm_implementation& control = mutant_table(control_name, device_type(device));
  const rmsnorm_implementation& product = *kernels::find_original(original, device_type(device));
  const auto same_bits = [](const at::Tensor& a, const at::Tensor& b) {
    return at::equal(a.view(at::kByte), b.view(at::kByte));
  };
  for (const Case& problem : cases) {
    if (problem.gamma != GammaKind::same) continue;
    const at::TensorOptions options =
        at::TensorOptions().dtype(to_scalar_type(problem.dtype)).device(device);
    const at::Tensor x = at::randn({problem.rows, problem.cols}, options), dy = at::randn_like(x);
    const at::Tensor gamma = at::randn({problem.cols}, options);
    const ForwardResult want = run_forward(product, x, gamma, 1, kIdentityEps, true);
    const ForwardResult got = run_forward(control, x, gamma, 1, kIdentityEps, true);
    const auto backward_of = [&](const rmsnorm_implementation& table) {
      return run_backward(table, x, dy, gamma, want.rstd, 1, kIdentityEps, true, true);
    };
    const BackwardResult want_gradients = backward_of(product), gradients = backward_of(control);
    ++result.judged;
    if (!same_bits(got.y, want.y) || !same_bits(got.rstd, want.rstd) ||
        !same_bits(gradients.dx, want_gradients.dx) ||
        !same_bits(gradients.dgamma, want_gradients.dgamma)) {
      result.false_alarms.push_back(
          {"identity", problem.name(), "other bits than " + std::string(name(original))});
    }
  }
  return result;
}

}  // namespace rmsnorm
