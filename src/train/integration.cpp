#include "train/integration.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "operator/autograd.hpp"
#include "reference/reference.hpp"
#include "train/checkpoint_folder.hpp"

namespace rmsnorm {
namespace {

namespace fs = std::filesystem;

// float32 values of order one that differ by a few roundings (2^-24 each).
constexpr double kInitialErrorBound = 1e-6;
// Roundings grow while 100 steps of Adam follow each other; a wrong gradient shows in the percents.
constexpr double kMseRelativeBound = 1e-3;
// The data's noise leaves far less than this; a path that does not learn stays near 1.
constexpr double kLearnedFraction = 0.5;
constexpr std::int64_t kStepsToLearn = 100;

double max_abs_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// The larger one; NaN stays.
double worse(double a, double b) {
  return a <= b ? b : a;
}

Split on_device(const Split& split, const c10::Device& device) {
  return {split.inputs.to(device), split.targets.to(device)};
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// One path with its folder of checkpoints.
struct Lane {
  TrainingRun run;
  CheckpointFolder folder;
  std::int64_t resumed_from = 0;
  std::string checkpoint;
  std::function<void()> after_save;

  Lane(const IntegrationRequest& request, const PathSpec& path, const Dataset& data)
      : run(request.config, path, data, request.data_sum, request.device),
        folder(request.checkpoints / path.folder, request.config.train.keep_checkpoints) {}

  /// Whether there was a checkpoint.
  bool resume(const IntegrationRequest& request) {
    const std::optional<OpenCheckpoint> found =
        folder.latest([&](const std::string& damage) { request.note("left out: " + damage); });
    if (!found) return false;
    require_same_identity(found->file, found->identity(), run.identity());
    const Snapshot snapshot = read_snapshot(*found, run.shapes());
    run.restore(found->file, snapshot);
    folder.continue_from(snapshot.step);
    resumed_from = snapshot.step;
    checkpoint = found->file.string();
    request.note(fmt::format("resumed the {} path after step {} from {}", run.path().name,
                             snapshot.step, checkpoint));
    const nlohmann::json here = run.snapshot().origin;
    for (const char* key : {"device", "threads"}) {
      if (snapshot.origin.value(key, nlohmann::json()) != here.at(key)) {
        request.note(fmt::format(
            "{} was {} when it was written and is {} now: the numbers go on, their last bits may "
            "differ from an undisturbed run",
            key, snapshot.origin.value(key, nlohmann::json()).dump(), here.at(key).dump()));
      }
    }
    return true;
  }

  void save() { checkpoint = folder.write(run.snapshot(), run.shapes()).string(); }

  /// False when it was stopped; what it did is then saved.
  bool train(const IntegrationRequest& request, std::int64_t done_before) {
    const TrainConfig& config = request.config.train;
    std::int64_t saved = resumed_from;
    while (run.steps_done() < config.steps) {
      if (request.stop()) {
        if (run.steps_done() > saved) save();
        return false;
      }
      run.step();
      const std::int64_t done = run.steps_done();
      const bool due = config.checkpoint_every > 0 && done % config.checkpoint_every == 0;
      if (due || done == config.steps) {
        save();
        saved = done;
      }
      request.progress(done_before + done);
    }
    return true;
  }

  /// Largest difference between this run and its last checkpoint, read into a fresh one.
  double reload_difference(const IntegrationRequest& request, const Dataset& data) const {
    TrainingRun fresh(request.config, run.path(), data, request.data_sum, request.device);
    const OpenCheckpoint opened = open_checkpoint(checkpoint);
    fresh.restore(opened.file, read_snapshot(opened, fresh.shapes()));
    double difference =
        max_abs_difference(fresh.predictions(data.test), run.predictions(data.test));
    for (std::size_t i = 0; i < run.shapes().size(); ++i) {
      difference = worse(difference, max_abs_difference(fresh.model().parameters()[i],
                                                        run.model().parameters()[i]));
    }
    return difference;
  }

  PathResult result() const {
    PathResult out;
    out.folder = run.path().folder;
    out.steps = run.steps_done();
    out.resumed_from = resumed_from;
    out.calls = run.calls();
    out.losses = run.losses();
    out.validation = run.validation();
    out.gamma_moved =
        max_abs_difference(run.model().gamma().detach(), at::ones_like(run.model().gamma()));
    out.step_us = median(run.step_us());
    out.checkpoint = checkpoint;
    return out;
  }
};

void compare_starts(const TrainingRun& reference, const TrainingRun& kernel,
                    IntegrationResult& result) {
  const TrainingRun::FirstBatch want = reference.look_at_first_batch();
  const TrainingRun::FirstBatch got = kernel.look_at_first_batch();
  result.initial_output_error = max_abs_difference(got.output, want.output);
  for (std::size_t i = 0; i < want.gradients.size(); ++i) {
    const double error = max_abs_difference(got.gradients[i], want.gradients[i]);
    result.initial_gradient_errors.emplace_back(reference.shapes()[i].key(), error);
    result.initial_gradient_error = worse(result.initial_gradient_error, error);
  }
}

double mse_of_mean(const Dataset& data) {
  const at::Tensor mean = data.train.targets.to(at::kDouble).mean(0, true);
  return (data.test.targets.to(at::kDouble) - mean).square().mean().item<double>();
}

void resume(const IntegrationRequest& request, Lane& reference, Lane& kernel) {
  // Both are looked at before either is judged: the reference path trains first, so that a run that
  // was stopped early has checkpoints of it alone.
  const bool has_reference = reference.resume(request), has_kernel = kernel.resume(request);
  if (!has_reference && !has_kernel) {
    throw MissingFileError(
        fmt::format("--resume: a checkpoint must be in {} or {}; there is none: leave out --resume "
                    "to start anew",
                    reference.folder.path().string(), kernel.folder.path().string()));
  }
  for (const Lane* lane : {&reference, &kernel}) {
    if (lane->checkpoint.empty()) {
      request.note(fmt::format("the {} path has no checkpoint yet and starts at step 0",
                               lane->run.path().name));
    }
  }
}

}  // namespace

PathSpec reference_path(const Config& config) {
  return {"reference", "reference",
          [eps = config.epsilon](const at::Tensor& x, const at::Tensor& gamma) {
            return reference::forward(x, gamma, eps);
          }};
}

PathSpec kernel_path(const Config& config, const rmsnorm_implementation& table,
                     const std::string& name) {
  std::string folder = "kernel-" + name;
  std::replace_if(
      folder.begin(), folder.end(), [](char c) { return c == '/' || c == ':'; }, '_');
  return {"kernel", folder,
          [&table, eps = config.epsilon, contract = config.contract](const at::Tensor& x,
                                                                     const at::Tensor& gamma) {
            return rms_norm_with(table, x, gamma, gamma.sizes(), eps, contract);
          }};
}

IntegrationResult train_integration(const IntegrationRequest& request) {
  const Dataset data{on_device(request.data.train, request.device),
                     on_device(request.data.validation, request.device),
                     on_device(request.data.test, request.device)};
  Lane reference(request, request.reference, data), kernel(request, request.kernel, data);
  IntegrationResult result;
  compare_starts(reference.run, kernel.run, result);
  result.mean_mse = mse_of_mean(data);
  result.judged_by_learning = request.config.train.steps >= kStepsToLearn;
  if (request.resume) resume(request, reference, kernel);
  // A resume must not find a new reference path beside an earlier run's kernel path.
  if (!request.resume) reference.after_save = [&] { kernel.folder.remove_all_but_last(); };

  result.interrupted =
      !reference.train(request, 0) || !kernel.train(request, request.config.train.steps);
  result.reference = reference.result();
  result.kernel = kernel.result();
  if (result.interrupted) return result;
  for (auto [lane, path] :
       {std::pair{&reference, &result.reference}, std::pair{&kernel, &result.kernel}}) {
    path->test_mse = lane->run.mse(data.test);
    path->reload_difference = lane->reload_difference(request, data);
  }
  const BatchOrder::State a = reference.run.snapshot().order, b = kernel.run.snapshot().order;
  result.same_batches = a.position == b.position && at::equal(a.generator, b.generator);
  return result;
}

std::vector<Requirement> requirements(const IntegrationResult& result) {
  std::vector<Requirement> out;
  const auto at_most = [&](const std::string& what, double got, double bound) {
    out.push_back(
        {what, fmt::format("{:.3g}", got), fmt::format("at most {:g}", bound), got <= bound});
  };
  const auto exactly = [&](const std::string& what, std::int64_t got, std::int64_t want) {
    out.push_back({what, std::to_string(got), fmt::format("exactly {}", want), got == want});
  };
  const PathResult &reference = result.reference, &kernel = result.kernel;
  at_most("initial output error", result.initial_output_error, kInitialErrorBound);
  for (const auto& [key, error] : result.initial_gradient_errors)
    at_most("initial gradient error of " + key, error, kInitialErrorBound);
  exactly("forward calls of the kernel path", kernel.calls.forward, kernel.steps);
  exactly("backward calls of the kernel path", kernel.calls.backward, kernel.steps);
  exactly("kernel calls of the reference path", reference.calls.forward + reference.calls.backward,
          0);
  exactly("same batches in both paths", result.same_batches ? 1 : 0, 1);
  at_most("reload difference of the reference path", reference.reload_difference, 0);
  at_most("reload difference of the kernel path", kernel.reload_difference, 0);
  at_most("test MSE, relative difference of the paths",
          std::abs(kernel.test_mse - reference.test_mse) / reference.test_mse, kMseRelativeBound);
  for (const PathResult* path : {&reference, &kernel}) {
    out.push_back({"gamma moved, path " + path->folder, fmt::format("{:.3g}", path->gamma_moved),
                   "above 0", path->gamma_moved > 0});
    if (!result.judged_by_learning) continue;
    at_most("test MSE over that of the mean, path " + path->folder,
            path->test_mse / result.mean_mse, kLearnedFraction);
  }
  return out;
}

}  // namespace rmsnorm
