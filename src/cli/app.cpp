#include "cli/app.hpp"

#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <cstdio>
#include <memory>
#include <random>

#include "cli/console.hpp"
#include "cli/environment.hpp"
#include "cli/interrupt.hpp"
#include "core/files.hpp"
#include "rmsnorm/errors.hpp"
#include "train/data.hpp"

namespace rmsnorm::cli {
namespace {

std::uint64_t parse_seed(const std::string& text) {
  if (text == "entropy") {
    std::random_device entropy;
    return (static_cast<std::uint64_t>(entropy()) << 31) ^ entropy();
  }
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw ConfigError("--seed: must be a whole number from 0 or the word entropy; got " + text);
  }
  return seed;
}

/// Config and flags as one: what the flags say, the report echoes.
Config effective_config(const Options& options) {
  Config config = options.config.empty() ? Config{} : read_config(options.config);
  if (!options.device.empty()) config.device = options.device;
  if (!options.implementations.empty()) config.implementations = options.implementations;
  if (!options.seed.empty()) config.seed = parse_seed(options.seed);
  return config;
}

struct Failure {
  Exit exit;
  std::string message;
};

/// The exit code that an exception stands for.
Failure failure_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const ConfigError& error) {
    return {Exit::usage, first_line(error.what())};
  } catch (const MissingFileError& error) {
    return {Exit::missing, first_line(error.what())};
  } catch (const UnavailableError& error) {
    return {Exit::missing, first_line(error.what())};
  } catch (const ContractError& error) {
    return {Exit::usage, first_line(error.what())};
  } catch (const Interrupted& error) {
    return {Exit::interrupted, first_line(error.what())};
  } catch (const std::bad_alloc&) {
    return {Exit::failed, "out of memory; use smaller cases"};
  } catch (const std::exception& error) {
    return {Exit::failed, first_line(error.what())};
  }
}

/// A report that cannot be written turns a pass into a failure.
void write(const Report& report, const Options& options, Exit& exit) {
  try {
    const std::filesystem::path file = report.write(options.out, exit);
    if (!options.quiet) print_line("report: " + file.string());
  } catch (const std::exception& error) {
    print_error(first_line(error.what()));
    if (exit == Exit::passed) exit = Exit::failed;
  }
}

Exit run(const std::string& command, const Options& options, const std::vector<std::string>& argv,
         const Body& body, Needs needs) {
  Report report(command, argv);
  Exit exit = Exit::passed;
  bool write_report = true;
  try {
    Config config = effective_config(options);
    if (!options.config.empty()) report.set_config(to_json(config));
    const bool with_device = needs == Needs::config_and_device;
    const ChosenDevice chosen = choose_device(with_device ? config.device : "cpu");
    report.set_environment(environment_of(chosen.device));
    if (with_device && !options.quiet) print_line(chosen.announcement);
    Context context{options, std::move(config), chosen.device, report, argv};
    // Current for everything that the body does: implementations run on the current device's
    // stream.
    const c10::OptionalDeviceGuard guard(chosen.device.is_cuda() ? std::optional(chosen.device)
                                                                 : std::nullopt);
    body(context);
    write_report = context.write_report;
    exit = report.verdict();
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    exit = failure.exit;
    report.fail(failure.message);
    print_error(failure.message);
  }
  if (write_report) write(report, options, exit);
  print_line(report.verdict_line(exit));
  return exit;
}

}  // namespace

std::string Context::command_line(const std::string& command) const {
  return fmt::format("rmsnorm {} --config {} --device {} --seed {}", command, options.config,
                     device.str(), config.seed);
}

Subcommand add_subcommand(Program& program, const std::string& name, const std::string& description,
                          Body body, Needs needs) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = program.app.add_subcommand(name, description);
  sub->add_option("--config", options->config, "YAML file: cases, tolerances, seed, device, ...")
      ->required(needs == Needs::config_and_device);
  sub->add_option("--device", options->device, "cpu, cuda, cuda:I or auto (default: the config's)");
  sub->add_option(
         "--implementation", options->implementations,
         "rowwise, tuned, reference, aten, plugin:PATH, mutant:NAME, mutant:tuned/NAME; may be "
         "repeated (default: the config's)")
      ->allow_extra_args(false);
  sub->add_option("--case", options->case_pattern,
                  "only cases of this name; * stands for any text");
  sub->add_option("--seed", options->seed,
                  "a number, or entropy for a fresh one (default: the config's)");
  sub->add_option("--out", options->out, "folder for the report")->capture_default_str();
  sub->add_option("--artifacts", options->artifacts, "folder for data and checkpoints")
      ->capture_default_str();
  sub->add_flag("--quiet", options->quiet, "print the verdict and errors only");
  sub->callback([&program, name, options, needs, body = std::move(body)] {
    program.chosen = [&program, name, options, needs, body] {
      return run(name, *options, program.argv, body, needs);
    };
  });
  return {sub, options.get()};
}

}  // namespace rmsnorm::cli
