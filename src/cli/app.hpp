#pragma once

#include <c10/core/Device.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/report.hpp"

namespace CLI {
class App;
}

namespace rmsnorm::cli {

/// The flags that every subcommand takes.
struct Options {
  std::string config;
  std::string device;  ///< empty: the config's
  std::vector<std::string> implementations;
  std::string case_pattern;
  std::string seed;  ///< empty, a number, or entropy
  std::string out = "outputs";
  std::string artifacts = "artifacts";
  bool quiet = false;
};

/// What a subcommand's body works with.
struct Context {
  const Options& options;
  Config config;
  c10::Device device;
  Report& report;
  std::vector<std::string> argv;
  bool write_report = true;  ///< false: the command has a reason to leave no report behind

  /// `rmsnorm COMMAND --config ... --device ... --seed ...`, to which a repro adds what narrows it
  /// down.
  std::string command_line(const std::string& command) const;
  std::filesystem::path data_dir() const {
    return std::filesystem::path(options.artifacts) / "data";
  }
};

using Body = std::function<void(Context&)>;

/// The program being put together: its parser, and what the chosen subcommand will do.
struct Program {
  CLI::App& app;
  std::vector<std::string> argv;
  std::function<Exit()> chosen;
};

/// Adds a subcommand with the common flags. Its body runs with config and device ready; whatever it
/// throws becomes the exit code of SPEC, a sentence on stderr and a failure in the report, which is
/// written in every case. Returns the parser's subcommand, for flags of its own, and the options it
/// will fill.
/// What has to be there before the body runs. files_only: --config may be left out, and no device
/// is chosen.
enum class Needs { config_and_device, files_only };
struct Subcommand {
  CLI::App* app;
  Options* options;
};
Subcommand add_subcommand(Program& program, const std::string& name, const std::string& description,
                          Body body, Needs needs = Needs::config_and_device);

void add_check_commands(Program& program);
void add_reference_command(Program& program);
void add_environment_command(Program& program);
void add_benchmark_command(Program& program);
void add_acquire_command(Program& program);
void add_exercise_command(Program& program);
void add_train_command(Program& program);
void add_checkpoints_command(Program& program);
void add_clean_command(Program& program);

}  // namespace rmsnorm::cli
