#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "train/checkpoint.hpp"
#include "train/data.hpp"
#include "train/model.hpp"

namespace torch::optim {
class Adam;
}

namespace rmsnorm {

/// One path: what normalizes, and the names it has in reports and files.
struct PathSpec {
  std::string name;    ///< reference or kernel
  std::string folder;  ///< of its checkpoints
  NormFunction norm;
};

/// What a checkpoint's run and the one that goes on from it must have in common: seed, contract,
/// epsilon, the train section without steps, checkpoint_every and keep_checkpoints, the data's sum
/// and the path.
nlohmann::json run_identity(const Config& config, const PathSpec& path,
                            const std::string& data_sum);

/// Throws ConfigError with the first key that differs and both values.
void require_same_identity(const std::filesystem::path& file, const nlohmann::json& checkpoint,
                           const nlohmann::json& run);

/// Model, optimizer and position in the data of one path. The same config, data, device and number
/// of threads give the same bits, whether in one go or resumed.
class TrainingRun {
 public:
  /// `data` is on `device` and outlives the run.
  TrainingRun(const Config& config, PathSpec path, const Dataset& data, std::string data_sum,
              const c10::Device& device);
  ~TrainingRun();
  TrainingRun(TrainingRun&&) noexcept;
  TrainingRun& operator=(TrainingRun&&) = delete;

  /// Draws the next batch, steps once, takes a validation point where one is due. Only the forward
  /// and the backward of the step itself count in calls().
  void step();

  /// Mean squared error over a split, in pieces of the batch's size (a contract bounds rows*cols).
  double mse(const Split& split) const;
  /// Predictions for a split, on the run's device.
  at::Tensor predictions(const Split& split) const;

  struct FirstBatch {
    at::Tensor output;
    std::vector<at::Tensor> gradients;  ///< in the order of parameter_shapes
  };
  /// Output and gradients of the loss for the first batch, without a step; before the first one
  /// only. The order of the data stays where it is.
  FirstBatch look_at_first_batch() const;

  std::int64_t steps_done() const { return static_cast<std::int64_t>(losses_.size()); }
  const std::vector<double>& losses() const { return losses_; }
  const std::vector<ValidationPoint>& validation() const { return validation_; }
  const CallCounts& calls() const { return calls_; }
  const std::vector<double>& step_us() const { return step_us_; }  ///< of this process's steps
  const PathSpec& path() const { return path_; }
  const Model& model() const { return model_; }
  const std::vector<ParameterShape>& shapes() const { return shapes_; }
  nlohmann::json identity() const { return run_identity(config_, path_, data_sum_); }

  Snapshot snapshot() const;

  /// Goes on where `snapshot` was taken. Everything is checked first: on CheckpointError, which
  /// names `file`, the run is as it was.
  void restore(const std::filesystem::path& file, const Snapshot& snapshot);

 private:
  void validate_if_due();

  Config config_;
  PathSpec path_;
  const Dataset& data_;
  std::string data_sum_;
  c10::Device device_;
  std::vector<ParameterShape> shapes_;
  Model model_;
  std::unique_ptr<torch::optim::Adam> adam_;
  BatchOrder order_;
  std::vector<double> losses_, step_us_;
  std::vector<ValidationPoint> validation_;
  CallCounts calls_;
};

}  // namespace rmsnorm
