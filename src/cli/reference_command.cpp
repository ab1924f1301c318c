#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "check/subject.hpp"
#include "cli/app.hpp"
#include "cli/console.hpp"
#include "operator/autograd.hpp"
#include "reference/gradcheck.hpp"
#include "reference/reference.hpp"
#include "train/data.hpp"

namespace rmsnorm::cli {
namespace {

using reference::kGradcheckBound;

at::Tensor row(std::vector<double> values) {
  return at::tensor(values, at::kDouble).unsqueeze(0);
}

std::string numbers(const at::Tensor& tensor) {
  std::string text;
  const at::Tensor flat = tensor.reshape({-1});
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    text += fmt::format("{}{:.6f}", i > 0 ? ", " : "", flat[i].item<double>());
  }
  return "[" + text + "]";
}

struct Measured {
  std::string what;
  double error, bound;
};

/// The tutorial's hand-computed examples; its numbers have six decimals.
std::vector<Measured> worked_examples(double eps, bool quiet) {
  constexpr double kSixDecimals = 5e-7;
  const at::Tensor x = row({3, 4}), ones = at::ones({2}, at::kDouble),
                   gamma = at::tensor({2.0, 0.5}, at::kDouble);
  const at::Tensor y = reference::forward(x, ones, eps), scaled = reference::forward(x, gamma, eps);
  const at::Tensor dx = reference::closed_form_backward(x, ones, row({1, 2}), eps).dx;
  const at::Tensor many =
      reference::forward(at::ones({1, 257}, at::kDouble), at::ones({257}, at::kDouble), eps);
  const auto error = [](const at::Tensor& got, const at::Tensor& want) {
    return (got - want).abs().max().item<double>();
  };
  if (!quiet) {
    print_table({{"worked example", "result"},
                 {"y of [3, 4], gamma [1, 1]", numbers(y)},
                 {"y of [3, 4], gamma [2, 0.5]", numbers(scaled)},
                 {"dx of [3, 4], gamma [1, 1], dy [1, 2]", numbers(dx)},
                 {"y of 257 ones", fmt::format("{:.7f}", many[0][0].item<double>())}});
  }
  return {
      {"y of [3, 4]", error(y, row({0.848528, 1.131371})), kSixDecimals},
      {"y of [3, 4] with gamma [2, 0.5]", error(scaled, row({1.697056, 0.565685})), kSixDecimals},
      {"dx of [3, 4] with dy [1, 2]", error(dx, row({-0.090510, 0.067882})), kSixDecimals},
      {"y of 257 ones", error(many, at::full({1, 257}, 0.9999995, at::kDouble)), kSixDecimals}};
}

struct SmallProblem {
  at::Tensor x, gamma, dy;
};

/// Small, since every element is moved twice. Not N = 1: there dx is the difference of two terms
/// that agree to six digits, and a relative error says nothing; the checks judge it by the size of
/// the terms.
std::vector<SmallProblem> small_problems(std::uint64_t seed) {
  at::manual_seed(seed);
  std::vector<SmallProblem> problems;
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{1, 2}, {3, 5}, {2, 33}, {7, 16}};
  for (const auto& [rows, cols] : shapes) {
    const at::Tensor x = at::randn({rows, cols}, at::kDouble);
    problems.push_back(
        {x, at::randn({cols}, at::kDouble), 0.5 * x + at::randn({rows, cols}, at::kDouble)});
  }
  return problems;
}

/// dx and dgamma of sum(forward(x, gamma) * dy), by autograd through `forward`.
reference::Gradients autograd_gradients(const SmallProblem& problem, const c10::Device& device,
                                        const auto& forward) {
  const at::Tensor x = problem.x.to(device).requires_grad_(),
                   gamma = problem.gamma.to(device).requires_grad_();
  const auto gradients =
      torch::autograd::grad({forward(x, gamma)}, {x, gamma}, {problem.dy.to(device)});
  return {gradients[0], gradients[1]};
}

/// The worst error of gradients against finite differences of the same forward.
double gradcheck(const std::vector<SmallProblem>& problems, const c10::Device& device,
                 const auto& forward) {
  double worst = 0;
  for (const SmallProblem& problem : problems) {
    const reference::Gradients got = autograd_gradients(problem, device, forward);
    const at::Tensor dy = problem.dy.to(device);
    const auto loss = [&](const std::vector<at::Tensor>& inputs) {
      const c10::NoGradGuard no_grad;
      return (forward(inputs[0].to(device), inputs[1].to(device)) * dy)
          .sum()
          .template item<double>();
    };
    const auto want = reference::finite_differences(loss, {problem.x, problem.gamma});
    worst = std::max({worst, reference::worst_relative_error(got.dx, want[0]),
                      reference::worst_relative_error(got.dgamma, want[1])});
  }
  return worst;
}

double closed_form_error(const std::vector<SmallProblem>& problems, double eps) {
  double worst = 0;
  for (const SmallProblem& problem : problems) {
    const auto want =
        autograd_gradients(problem, at::kCPU, [&](const at::Tensor& x, const at::Tensor& gamma) {
          return reference::forward(x, gamma, eps);
        });
    const reference::Gradients got =
        reference::closed_form_backward(problem.x, problem.gamma, problem.dy, eps);
    worst = std::max({worst, reference::worst_relative_error(got.dx, want.dx),
                      reference::worst_relative_error(got.dgamma, want.dgamma)});
  }
  return worst;
}

void run_reference(Context& context) {
  constexpr double kClosedFormBound = 1e-12;  // two float64 derivations of the same number
  const double eps = context.config.epsilon;
  std::vector<Measured> measured = worked_examples(1e-6, context.options.quiet);
  const std::vector<SmallProblem> problems = small_problems(context.config.seed);
  measured.push_back(
      {"closed form against autograd", closed_form_error(problems, eps), kClosedFormBound});
  measured.push_back({"gradcheck of reference (float64)",
                      gradcheck(problems, at::kCPU,
                                [&](const at::Tensor& x, const at::Tensor& gamma) {
                                  return reference::forward(x, gamma, eps);
                                }),
                      kGradcheckBound});
  for (const std::string& name : context.config.implementations) {
    if (name == "reference" || name == "aten")
      continue;  // not ours to differentiate; the checks compare them
    const Subject subject =
        find_subject(name, context.device.is_cuda() ? RMSNORM_CUDA : RMSNORM_CPU);
    const double error =
        gradcheck(problems, context.device, [&](const at::Tensor& x, const at::Tensor& gamma) {
          return rms_norm_with(*subject.table, x, gamma, {gamma.sizes()}, eps, Contract::full);
        });
    measured.push_back({fmt::format("gradcheck of {} (float64, {})", name, context.device.str()),
                        error, kGradcheckBound});
  }

  std::vector<std::vector<std::string>> table{{"check", "worst error", "bound"}};
  nlohmann::json section = nlohmann::json::array();
  for (const Measured& item : measured) {
    table.push_back(
        {item.what, fmt::format("{:.2e}", item.error), fmt::format("{:.0e}", item.bound)});
    section.push_back(
        {{"name", item.what}, {"worst_error", json_number(item.error)}, {"bound", item.bound}});
    if (!(item.error <= item.bound)) {
      context.report.fail(
          fmt::format("{}: error {:.2e} above {:.0e}", item.what, item.error, item.bound));
    }
  }
  context.report.section("reference") = section;
  context.report.passes_without_cases();

  const TrainConfig& train = context.config.train;
  write_dataset(context.data_dir(), draw_dataset(train, context.config.seed), train,
                context.config.seed);
  if (context.options.quiet) return;
  print_table(table);
  print_line("splits: " + context.data_dir().string());
}

}  // namespace

void add_reference_command(Program& program) {
  add_subcommand(
      program, "reference",
      "Worked examples, closed form against autograd, float64 gradcheck; writes the three splits",
      run_reference);
}

}  // namespace rmsnorm::cli
