#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/config.hpp"
#include "rmsnorm/implementation.h"
#include "train/data.hpp"
#include "train/run.hpp"

namespace rmsnorm {

/// The path of tensor operations, which calls no kernel.
PathSpec reference_path(const Config& config);
/// The path through a table, under the config's contract; `name` as a config spells it.
PathSpec kernel_path(const Config& config, const rmsnorm_implementation& table,
                     const std::string& name);

struct IntegrationRequest {
  Config config;
  c10::Device device{c10::kCPU};
  Dataset data;          ///< on any device
  std::string data_sum;  ///< goes into the checkpoints
  PathSpec reference, kernel;
  std::filesystem::path checkpoints;  ///< has a folder for each path
  bool resume = false;
  std::function<bool()> stop = [] { return false; };                 ///< asked between steps
  std::function<void(std::int64_t)> progress = [](std::int64_t) {};  ///< steps done, both paths
  std::function<void(const std::string&)> note = [](const std::string&) {};
};

struct PathResult {
  std::string folder;
  std::int64_t steps = 0, resumed_from = 0;
  CallCounts calls;
  std::vector<double> losses;
  std::vector<ValidationPoint> validation;
  double test_mse = 0;
  double reload_difference = 0;  ///< of predictions and parameters, after reading the last file
  double gamma_moved = 0;        ///< largest |gamma - its start|
  double step_us = 0;            ///< median of this process's steps; 0 when it made none
  std::string checkpoint;        ///< the last one written or resumed from
};

struct IntegrationResult {
  double initial_output_error = 0;
  std::vector<std::pair<std::string, double>> initial_gradient_errors;  ///< for each parameter
  double initial_gradient_error = 0;                                    ///< the largest of them
  double mean_mse = 0;        ///< of predicting the mean of the training targets, on the test split
  bool same_batches = false;  ///< both paths' orders ended in the same state
  PathResult reference, kernel;
  bool interrupted = false;         ///< stop() said so; what was done is in the checkpoints
  bool judged_by_learning = false;  ///< the run is long enough for that
};

/// Trains the reference path, then the kernel path: same initial parameters, same batches, each
/// with checkpoints of its own. Throws ConfigError for a resume under another config,
/// MissingFileError for a resume where neither path has a checkpoint, CheckpointError,
/// std::runtime_error for files.
IntegrationResult train_integration(const IntegrationRequest& request);

/// What must hold of a finished run.
struct Requirement {
  std::string what, got, bound;
  bool holds = false;
};
std::vector<Requirement> requirements(const IntegrationResult& result);

}  // namespace rmsnorm
