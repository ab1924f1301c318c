#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "rmsnorm/counters.hpp"
#include "train/model.hpp"
#include "train/random.hpp"

namespace rmsnorm {

/// A checkpoint that will not be loaded; names the file, what must hold and what came.
class CheckpointError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Its bytes are not those that were written (torn, truncated, flipped, not a checkpoint at all):
/// an earlier one of the same run may still be whole.
class DamagedCheckpoint : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

struct Moments {
  std::int64_t step = 0;           ///< Adam's own count for this parameter
  at::Tensor exp_avg, exp_avg_sq;  ///< of the parameter's shape
};

struct ValidationPoint {
  std::int64_t step = 0;
  double mse = 0;
};

/// Everything that the next step of a training run depends on, and what the final report needs of
/// the steps before. Tensors are on the CPU and share nothing with the run.
struct Snapshot {
  nlohmann::json identity;  ///< what a run that goes on from here must have in common with it
  nlohmann::json origin;    ///< where it was written: device, threads, tool. For information
  std::int64_t step = 0;
  CallCounts calls;     ///< of the training steps
  nlohmann::json adam;  ///< the optimizer's settings
  std::vector<at::Tensor> parameters;
  std::vector<Moments> moments;
  BatchOrder::State order;
  std::vector<double> losses;  ///< one for each step
  std::vector<ValidationPoint> validation;
};

/// Raised whenever the format below changes.
inline constexpr int checkpoint_format = 1;

/// The file format: a line `rmsnorm-checkpoint FORMAT BYTES SHA256`, BYTES and SHA256 being those
/// of all that follows; a line of JSON (step, counters, settings, identity); then libtorch's own
/// archive: `model` as a torch::nn::Module of the same structure would save it, `exp_avg` and
/// `exp_avg_sq` with the same keys, `adam_steps`, `order_generator`, `losses`, `validation_steps`,
/// `validation_mse`.
std::string encode_checkpoint(const Snapshot& snapshot, const std::vector<ParameterShape>& shapes);

/// A file whose bytes are those that were written; nothing of it is in a model yet.
struct OpenCheckpoint {
  std::filesystem::path file;
  nlohmann::json meta;  ///< the line of JSON
  std::string archive;

  const nlohmann::json& identity() const { return meta.at("identity"); }
};

/// Checks magic, format, length and sum, in this order. Throws DamagedCheckpoint, or
/// CheckpointError for another format and a file that is not there.
OpenCheckpoint open_checkpoint(const std::filesystem::path& file);

/// Checks every key, size, dtype and count against `shapes` and each other; then, and only then,
/// the result exists. On whatever device it was written, its tensors are on the CPU. Throws
/// CheckpointError with the key and both values.
Snapshot read_snapshot(const OpenCheckpoint& checkpoint, const std::vector<ParameterShape>& shapes);

/// The file of a step: `step-000050.ckpt`.
std::string checkpoint_name(std::int64_t step);

}  // namespace rmsnorm
