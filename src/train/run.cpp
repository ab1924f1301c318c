#include "train/run.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/adam.h>

#include <chrono>
#include <utility>

#include "core/report.hpp"

namespace rmsnorm {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamParamState;

CallCounts operator-(const CallCounts& a, const CallCounts& b) {
  return {a.forward - b.forward, a.backward - b.backward, a.copies - b.copies};
}

nlohmann::json settings_of(const torch::optim::Adam& adam) {
  const auto& options = static_cast<const AdamOptions&>(adam.defaults());
  return {{"learning_rate", options.lr()},          {"beta1", std::get<0>(options.betas())},
          {"beta2", std::get<1>(options.betas())},  {"eps", options.eps()},
          {"weight_decay", options.weight_decay()}, {"amsgrad", options.amsgrad()}};
}

/// nullptr before the parameter's first step.
const AdamParamState* state_of(const torch::optim::Adam& adam, const at::Tensor& parameter) {
  const auto found = adam.state().find(parameter.unsafeGetTensorImpl());
  return found == adam.state().end() ? nullptr
                                     : static_cast<const AdamParamState*>(found->second.get());
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, tensor.scalar_type(), false, true);
}

/// `key`, `both values` of the first difference between two JSON values, or nothing.
std::string first_difference(const nlohmann::json& checkpoint, const nlohmann::json& run,
                             const std::string& key) {
  if (checkpoint == run) return {};
  if (!checkpoint.is_object() || !run.is_object()) {
    return fmt::format("{} must be the checkpoint's {}; got {}", key, checkpoint.dump(),
                       run.dump());
  }
  nlohmann::json keys = checkpoint;
  keys.update(run);
  for (const auto& item : keys.items()) {
    const auto value = [&](const nlohmann::json& of) {
      return of.contains(item.key()) ? of.at(item.key()) : nlohmann::json();
    };
    const std::string name = key.empty() ? item.key() : key + "." + item.key();
    std::string difference = first_difference(value(checkpoint), value(run), name);
    if (!difference.empty()) return difference;
  }
  return {};
}

}  // namespace

nlohmann::json run_identity(const Config& config, const PathSpec& path,
                            const std::string& data_sum) {
  const nlohmann::json whole = to_json(config);
  nlohmann::json train = whole.at("train");
  for (const char* may_differ : {"steps", "checkpoint_every", "keep_checkpoints"}) {
    train.erase(may_differ);
  }
  return {{"path", path.folder},
          {"seed", whole.at("seed")},
          {"contract", whole.at("contract")},
          {"epsilon", whole.at("epsilon")},
          {"train", train},
          {"data", data_sum}};
}

void require_same_identity(const std::filesystem::path& file, const nlohmann::json& checkpoint,
                           const nlohmann::json& run) {
  const std::string difference = first_difference(checkpoint, run, "");
  if (difference.empty()) return;
  throw ConfigError(
      fmt::format("--resume: {}: {}; resume with that config, or leave out --resume to start anew",
                  file.string(), difference));
}

TrainingRun::TrainingRun(const Config& config, PathSpec path, const Dataset& data,
                         std::string data_sum, const c10::Device& device)
    : config_(config),
      path_(std::move(path)),
      data_(data),
      data_sum_(std::move(data_sum)),
      device_(device),
      shapes_(parameter_shapes(config.train)),
      model_(config.train, config.seed, device),
      adam_(std::make_unique<torch::optim::Adam>(model_.parameters(),
                                                 AdamOptions(config.train.learning_rate))),
      order_(config.train.train_examples, config.train.batch, config.seed) {
  validate_if_due();
}

TrainingRun::~TrainingRun() = default;
TrainingRun::TrainingRun(TrainingRun&&) noexcept = default;

void TrainingRun::step() {
  const auto started = std::chrono::steady_clock::now();
  const at::Tensor indices = order_.next().to(device_);
  const at::Tensor inputs = data_.train.inputs.index_select(0, indices);
  const at::Tensor targets = data_.train.targets.index_select(0, indices);
  adam_->zero_grad();
  const CallCounts before = call_counts();
  const at::Tensor loss = at::mse_loss(model_.predict(inputs, path_.norm), targets);
  loss.backward();
  const CallCounts counted = call_counts() - before;
  adam_->step();
  losses_.push_back(loss.item<double>());  // waits for the device
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - started;
  step_us_.push_back(took.count());
  calls_.forward += counted.forward;
  calls_.backward += counted.backward;
  calls_.copies += counted.copies;
  validate_if_due();
}

void TrainingRun::validate_if_due() {
  if (steps_done() % config_.train.validate_every != 0) return;
  validation_.push_back({steps_done(), mse(data_.validation)});
}

at::Tensor TrainingRun::predictions(const Split& split) const {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : split.inputs.split(config_.train.batch))
    parts.push_back(model_.predict(part, path_.norm));
  return at::cat(parts);
}

double TrainingRun::mse(const Split& split) const {
  const at::Tensor error = predictions(split).to(at::kDouble) - split.targets.to(at::kDouble);
  return error.square().mean().item<double>();
}

TrainingRun::FirstBatch TrainingRun::look_at_first_batch() const {
  BatchOrder order(config_.train.train_examples, config_.train.batch, config_.seed);
  const at::Tensor indices = order.next().to(device_);
  FirstBatch first;
  first.output = model_.predict(data_.train.inputs.index_select(0, indices), path_.norm);
  const at::Tensor loss = at::mse_loss(first.output, data_.train.targets.index_select(0, indices));
  const auto& parameters = model_.parameters();
  first.gradients = torch::autograd::grad({loss}, parameters, {}, c10::nullopt, false, true);
  // A path that leaves a parameter out has no gradient for it: a difference to report, not an end.
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!first.gradients[i].defined()) first.gradients[i] = at::zeros_like(parameters[i]);
  }
  first.output = first.output.detach();
  return first;
}

Snapshot TrainingRun::snapshot() const {
  Snapshot result;
  result.identity = identity();
  const ToolInfo tool = tool_info();
  result.origin = {{"device", device_.str()},
                   {"threads", at::get_num_threads()},
                   {"version", tool.version},
                   {"git", tool.git}};
  result.step = steps_done();
  result.calls = calls_;
  result.adam = settings_of(*adam_);
  for (const at::Tensor& parameter : model_.parameters()) {
    result.parameters.push_back(on_cpu(parameter));
    const AdamParamState* state = state_of(*adam_, parameter);
    result.moments.push_back(
        {state == nullptr ? 0 : state->step(),
         state == nullptr ? at::zeros_like(result.parameters.back()) : on_cpu(state->exp_avg()),
         state == nullptr ? at::zeros_like(result.parameters.back())
                          : on_cpu(state->exp_avg_sq())});
  }
  result.order = order_.state();
  result.losses = losses_;
  result.validation = validation_;
  return result;
}

void TrainingRun::restore(const std::filesystem::path& file, const Snapshot& snapshot) {
  require_same_identity(file, snapshot.identity, identity());
  if (const nlohmann::json settings = settings_of(*adam_); snapshot.adam != settings) {
    throw CheckpointError(
        fmt::format("{}: {}", file.string(), first_difference(snapshot.adam, settings, "adam")));
  }
  if (snapshot.step > config_.train.steps) {
    throw ConfigError(
        fmt::format("--resume: {}: steps must be at least the checkpoint's {}; got {}",
                    file.string(), snapshot.step, config_.train.steps));
  }
  try {
    order_.restore(snapshot.order);
  } catch (const std::exception& error) {
    throw CheckpointError(fmt::format("{}: {}", file.string(), error.what()));
  }
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    const at::Tensor& parameter = model_.parameters()[i];
    // Into the storage that is there: sizes, dtype and device stay the model's.
    parameter.copy_(snapshot.parameters[i]);
    parameter.mutable_grad().reset();
    auto state = std::make_unique<AdamParamState>();
    state->step(snapshot.moments[i].step);
    state->exp_avg(snapshot.moments[i].exp_avg.to(parameter.options(), false, true));
    state->exp_avg_sq(snapshot.moments[i].exp_avg_sq.to(parameter.options(), false, true));
    adam_->state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
  losses_ = snapshot.losses;
  validation_ = snapshot.validation;
  calls_ = snapshot.calls;
  step_us_.clear();
}

}  // namespace rmsnorm
