#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <exception>

#include "check/subject.hpp"
#include "cli/app.hpp"
#include "cli/console.hpp"
#include "cli/environment.hpp"
#include "cli/interrupt.hpp"
#include "core/files.hpp"
#include "mutants/mutants.hpp"
#include "operator/device.hpp"

namespace {

std::string version_text() {
  const rmsnorm::ToolInfo tool = rmsnorm::tool_info();
  const std::string cuda = rmsnorm::cuda_runtime_version();
  return fmt::format("rmsnorm {} (git {}{}), libtorch {}, CUDA {}, {}", tool.version, tool.git,
                     tool.dirty ? ", modified" : "", rmsnorm::cli::libtorch_version(),
                     cuda.empty() ? "none" : cuda, tool.build_type);
}

int run(int argc, char** argv) {
  CLI::App app("Checks, trains with and times RMSNorm kernels against an independent oracle.",
               "rmsnorm");
  rmsnorm::cli::Program program{.app = app, .argv = {argv, argv + argc}, .chosen = {}};
  program.app.set_version_flag("--version", version_text());
  program.app.require_subcommand(1);
  rmsnorm::cli::add_environment_command(program);
  rmsnorm::cli::add_acquire_command(program);
  rmsnorm::cli::add_reference_command(program);
  rmsnorm::cli::add_check_commands(program);
  rmsnorm::cli::add_benchmark_command(program);
  rmsnorm::cli::add_exercise_command(program);
  rmsnorm::add_subject_family("mutant:", "mutant:NAME, mutant:tuned/NAME", rmsnorm::mutant_table);
  rmsnorm::cli::add_train_command(program);
  rmsnorm::cli::add_checkpoints_command(program);
  rmsnorm::cli::add_clean_command(program);
  try {
    program.app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    program.app.exit(error);
    return static_cast<int>(asked ? rmsnorm::Exit::passed : rmsnorm::Exit::usage);
  }
  rmsnorm::cli::catch_interrupts();
  return static_cast<int>(program.chosen());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    rmsnorm::cli::print_error(rmsnorm::first_line(error.what()));
    return static_cast<int>(rmsnorm::Exit::failed);
  }
}
