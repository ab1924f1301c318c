#include <ATen/ATen.h>
#include <fmt/format.h>

#include "cli/app.hpp"
#include "cli/console.hpp"
#include "cli/environment.hpp"
#include "operator/device.hpp"
#include "rmsnorm/functional.hpp"

namespace rmsnorm::cli {
namespace {

/// Runs the library on the device: seeing a card is not yet being able to use it.
double computed_error(const c10::Device& device) {
  const at::Tensor x = at::ones({4, 257}, at::TensorOptions().dtype(at::kFloat).device(device));
  const at::Tensor y =
      functional::rms_norm(x, at::ones({257}, x.options()), 1e-6, Contract::minimum);
  return (y.to(at::kDouble) - 0.9999995).abs().max().item<double>();
}

void check_environment(Context& context) {
  constexpr double kBound = 1e-6;  // a few float32 roundings of a number near 1
  const Environment environment = environment_of(context.device);
  const double error = computed_error(context.device);
  const std::string cuda = cuda_problem(0);
  const ToolInfo tool = tool_info();
  if (!context.options.quiet) {
    print_table({{"rmsnorm", fmt::format("{} ({}{}, {})", tool.version, tool.git,
                                         tool.dirty ? ", modified" : "", tool.build_type)},
                 {"libtorch", environment.libtorch},
                 {"CUDA runtime", environment.cuda_runtime.empty() ? "none in this build"
                                                                   : environment.cuda_runtime},
                 {"driver", environment.driver.empty() ? "-" : environment.driver},
                 {"device", environment.device + ", " + environment.device_name},
                 {"memory",
                  context.device.is_cuda()
                      ? fmt::format("{} MiB", cuda_facts(context.device.index()).memory_bytes >> 20)
                      : "-"},
                 {"threads", std::to_string(environment.threads)},
                 {"CUDA", cuda.empty() ? "usable" : "not usable: " + cuda},
                 {"computation", fmt::format("257 ones normalized, error {:.1e}", error)}});
  }
  context.report.section("computation") = {{"max_abs_error", json_number(error)},
                                           {"bound", kBound}};
  context.report.section("cuda") = {{"usable", cuda.empty()}, {"problem", cuda}};
  context.report.passes_without_cases();
  if (!(error <= kBound)) {
    context.report.fail(fmt::format(
        "257 ones normalized to 0.9999995 with an error of {}, more than {}", error, kBound));
  }
}

}  // namespace

void add_environment_command(Program& program) {
  add_subcommand(
      program, "check-environment",
      "Run a computation on the device; print versions, memory, what is missing and the fix",
      check_environment);
}

}  // namespace rmsnorm::cli
