#include "exercise/demonstration.hpp"

#include <ATen/ATen.h>

#include <cmath>

#include "check/check.hpp"
#include "kernels/common/steps.hpp"
#include "mutants/mutants.hpp"
#include "operator/execution.hpp"
#include "operator/kernels.hpp"

namespace rmsnorm {
namespace {

constexpr std::int64_t kCheckedRows = 3;

std::int32_t device_type(const c10::Device& device) {
  return device.is_cuda() ? RMSNORM_CUDA : RMSNORM_CPU;
}

double first_of(const at::Tensor& tensor) {
  return tensor[0][0].item<double>();
}

}  // namespace

std::string_view name(Hypothesis hypothesis) {
  switch (hypothesis) {
    case Hypothesis::larger:
      return "larger";
    case Hypothesis::smaller:
      return "smaller";
    case Hypothesis::same:
      break;
  }
  return "same";
}

std::optional<Hypothesis> parse_hypothesis(std::string_view text) {
  for (const Hypothesis known : {Hypothesis::larger, Hypothesis::smaller, Hypothesis::same}) {
    if (text == name(known)) return known;
  }
  return std::nullopt;
}

Hypothesis OnesRow::truth() const {
  if (!shows_fault()) return Hypothesis::same;
  return std::fabs(faulty_y) > std::fabs(y) ? Hypothesis::larger : Hypothesis::smaller;
}

OnesRow compute_ones_row(std::int64_t cols, double eps, const c10::Device& device) {
  const rmsnorm_implementation& right = mutant_table("none", device_type(device));
  const rmsnorm_implementation& block = mutant_table("denominator_block", device_type(device));
  const rmsnorm_implementation& block_ux = mutant_table("mean_ux_block", device_type(device));
  const at::Tensor x = at::ones({1, cols}, at::TensorOptions().dtype(at::kFloat).device(device));
  const at::Tensor gamma = at::ones({cols}, x.options()), dy = at::ones_like(x);

  OnesRow row;
  row.cols = cols;
  row.width = kernels::block_width(cols);
  row.sum_of_squares = x.to(at::kDouble).square().sum().item<double>();
  row.mean = row.sum_of_squares / static_cast<double>(cols);
  row.faulty_mean = row.sum_of_squares / static_cast<double>(row.width);
  row.denominator = std::sqrt(row.mean + eps);
  row.faulty_denominator = std::sqrt(row.faulty_mean + eps);
  const ForwardResult forward = run_forward(right, x, gamma, 1, eps, true);
  row.y = first_of(forward.y);
  row.faulty_y = first_of(run_forward(block, x, gamma, 1, eps, true).y);

  row.sum_ux = (dy * gamma * x).to(at::kDouble).sum().item<double>();
  row.mean_ux = row.sum_ux / static_cast<double>(cols);
  row.faulty_mean_ux = row.sum_ux / static_cast<double>(row.width);
  const auto dx_by = [&](const rmsnorm_implementation& table) {
    return first_of(run_backward(table, x, dy, gamma, forward.rstd, 1, eps, true, true).dx);
  };
  row.dx = dx_by(right);
  row.faulty_dx = dx_by(block_ux);
  return row;
}

std::vector<Catch> check_block_mutant(const Config& config, const c10::Device& device) {
  InProcessRunner runner({"mutant:denominator_block",
                          &mutant_table("denominator_block", device_type(device)), nullptr});
  std::vector<Catch> catches;
  for (const std::int64_t cols : config.exercise.cols) {
    const Case problem{.rows = kCheckedRows, .cols = cols};
    for (const Operation operation : {Operation::forward, Operation::backward, Operation::gamma}) {
      const ComparisonResult found = check_case(operation, problem, runner, config, device);
      catches.push_back({std::string(command_name(operation)), problem.name(),
                         found.state == State::failed, found.reason});
    }
  }
  return catches;
}

}  // namespace rmsnorm
