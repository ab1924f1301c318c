#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "check/subject.hpp"
#include "cli/app.hpp"
#include "cli/console.hpp"
#include "cli/interrupt.hpp"
#include "core/files.hpp"
#include "core/folder.hpp"
#include "operator/kernels.hpp"
#include "train/integration.hpp"

namespace rmsnorm::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCommand = "train-integration";

struct TrainFlags {
  std::optional<std::int64_t> steps, checkpoint_every;
  bool resume = false;
};

/// The kernels of the run: what the library itself takes, or the one that was asked for.
Subject subject_of(const Context& context) {
  const std::vector<std::string>& named = context.options.implementations;
  const std::int32_t device = context.device.is_cuda() ? RMSNORM_CUDA : RMSNORM_CPU;
  if (named.empty()) {
    const rmsnorm_implementation& table = default_kernels(device);
    return {table.name, &table, nullptr};
  }
  if (named.size() > 1) {
    throw ConfigError(
        fmt::format("train-integration: --implementation must be given at most once; "
                    "got {}, of which one trains at a time",
                    named.size()));
  }
  return find_subject(named.front(), device);
}

/// The splits, made first where there are none at all; whatever is there must be whole.
Dataset splits(const Context& context, const std::function<void(const std::string&)>& note) {
  const TrainConfig& train = context.config.train;
  const fs::path dir = context.data_dir();
  if (names_in(dir).empty()) {
    write_dataset(dir, draw_dataset(train, context.config.seed), train, context.config.seed);
    note("made the splits in " + dir.string() + ", as acquire does");
  }
  return read_dataset(dir, train, context.config.seed);
}

nlohmann::json curve(const std::vector<ValidationPoint>& points) {
  nlohmann::json out = nlohmann::json::array();
  for (const ValidationPoint& point : points)
    out.push_back({{"step", point.step}, {"mse", json_number(point.mse)}});
  return out;
}

nlohmann::json calls_json(const CallCounts& calls) {
  return {{"forward", calls.forward}, {"backward", calls.backward}};
}

nlohmann::json training_json(const IntegrationResult& result, const std::string& implementation) {
  const PathResult &reference = result.reference, &kernel = result.kernel;
  const auto both = [&](auto&& of) {
    return nlohmann::json{{"reference", of(reference)}, {"kernel", of(kernel)}};
  };
  nlohmann::json json{
      {"implementation", implementation},
      {"initial_output_error", result.initial_output_error},
      {"initial_gradient_error", result.initial_gradient_error},
      {"calls", calls_json(kernel.calls)},
      {"reference_calls", calls_json(reference.calls)},
      {"losses", both([](const PathResult& path) { return path.losses; })},
      {"validation", both([](const PathResult& path) { return curve(path.validation); })},
      {"gamma_moved", both([](const PathResult& path) { return path.gamma_moved; })},
      {"step_us", both([](const PathResult& path) { return path.step_us; })},
      {"resumed_from", both([](const PathResult& path) { return path.resumed_from; })},
      {"checkpoint", both([](const PathResult& path) { return path.checkpoint; })},
      {"interrupted", result.interrupted}};
  for (const auto& [key, error] : result.initial_gradient_errors)
    json["initial_gradient_errors"][key] = error;
  if (result.interrupted) return json;
  json["test_mse"] = both([](const PathResult& path) { return path.test_mse; });
  json["test_mse"]["mean"] = result.mean_mse;
  json["reload_difference"] = std::max(reference.reload_difference, kernel.reload_difference);
  for (const Requirement& requirement : requirements(result)) {
    json["requirements"].push_back({{"what", requirement.what},
                                    {"got", requirement.got},
                                    {"bound", requirement.bound},
                                    {"holds", requirement.holds}});
  }
  return json;
}

void judge(Context& context, const IntegrationResult& result) {
  std::vector<std::vector<std::string>> table{{"what", "got", "must be", ""}};
  for (const Requirement& item : requirements(result)) {
    table.push_back({item.what, item.got, item.bound, item.holds ? "ok" : "FAILED"});
    if (!item.holds)
      context.report.fail(fmt::format("{} must be {}; got {}", item.what, item.bound, item.got));
  }
  context.report.passes_without_cases();
  if (context.options.quiet) return;
  print_table(table);
  if (!result.judged_by_learning) print_line("too few steps to judge what was learned");
  const auto time = [](double step_us) {
    return step_us > 0 ? fmt::format("{:.0f} us", step_us) : std::string("-");
  };
  const PathResult &reference = result.reference, &kernel = result.kernel;
  print_line("");
  print_table(
      {{"path", "test MSE", "last loss", "median time per step", "checkpoint"},
       {"reference", fmt::format("{:.6f}", reference.test_mse),
        fmt::format("{:.6f}", reference.losses.back()), time(reference.step_us),
        reference.checkpoint},
       {kernel.folder, fmt::format("{:.6f}", kernel.test_mse),
        fmt::format("{:.6f}", kernel.losses.back()), time(kernel.step_us), kernel.checkpoint},
       {"mean of the training targets", fmt::format("{:.6f}", result.mean_mse), "-", "-", "-"}});
}

/// How to go on with a run that was stopped.
std::string resume_command(const Context& context, const TrainFlags& flags) {
  const Options& options = context.options;
  std::string line = context.command_line(kCommand);
  if (!options.implementations.empty())
    line += " --implementation " + options.implementations.front();
  if (flags.steps) line += fmt::format(" --steps {}", *flags.steps);
  if (flags.checkpoint_every)
    line += fmt::format(" --checkpoint-every {}", *flags.checkpoint_every);
  return fmt::format("{} --artifacts {} --out {} --resume", line, options.artifacts, options.out);
}

void train(Context& context, const TrainFlags& flags) {
  TrainConfig& config = context.config.train;
  config.steps = flags.steps.value_or(config.steps);
  config.checkpoint_every = flags.checkpoint_every.value_or(config.checkpoint_every);
  context.report.set_config(to_json(context.config));
  const Subject subject = subject_of(context);
  nlohmann::json notes = nlohmann::json::array();
  const auto note = [&](const std::string& text) {
    notes.push_back(text);
    print_error(text);
  };

  IntegrationRequest request;
  request.config = context.config;
  request.device = context.device;
  request.data = splits(context, note);
  request.data_sum = sha256(read_file(context.data_dir() / "manifest.json"));
  request.reference = reference_path(context.config);
  request.kernel = kernel_path(context.config, *subject.table, subject.name);
  request.checkpoints = fs::path(context.options.artifacts) / "checkpoints";
  request.resume = flags.resume;
  request.stop = interrupted;
  request.note = note;
  Progress bar(kCommand, 2 * config.steps, context.options.quiet);
  request.progress = [&](std::int64_t done) { bar.advance(done); };

  const IntegrationResult result = train_integration(request);
  context.report.section("training") = training_json(result, subject.name);
  context.report.section("notes") = notes;
  if (result.interrupted) {
    const std::int64_t done = result.reference.steps + result.kernel.steps;
    throw Interrupted(fmt::format(
        "interrupted after step {} of {} on the reference path and step {} on the kernel path; {}",
        result.reference.steps, config.steps, result.kernel.steps,
        done == 0 ? "nothing was trained yet: run it again"
                  : "both are saved; go on with: " + resume_command(context, flags)));
  }
  judge(context, result);
}

}  // namespace

void add_train_command(Program& program) {
  auto flags = std::make_shared<TrainFlags>();
  const Subcommand sub = add_subcommand(
      program, kCommand,
      "Train Linear -> RMSNorm -> SiLU -> Linear on the reference and on the kernel path, compare",
      [flags](Context& context) { train(context, *flags); });
  sub.app->add_option("--steps", flags->steps, "steps in all (default: the config's)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}));
  sub.app
      ->add_option("--checkpoint-every", flags->checkpoint_every,
                   "steps between checkpoints; 0: only at the end (default: the config's)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000'000}));
  sub.app->add_flag("--resume", flags->resume,
                    "go on from the last whole checkpoint; without it a run starts anew and its "
                    "checkpoints replace the earlier run's");
}

}  // namespace rmsnorm::cli
