#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/config.hpp"

namespace rmsnorm {

/// How a path normalizes: y of x [rows, hidden] and gamma [hidden], differentiable in both.
using NormFunction = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& gamma)>;

/// One parameter's place in the network: `first.weight` is {"first", "weight", [hidden, inputs]}.
struct ParameterShape {
  std::string module, name;
  std::vector<std::int64_t> sizes;
  std::string key() const { return module + "." + name; }
};

/// The parameters of Linear -> RMSNorm -> SiLU -> Linear in the order that the optimizer has them;
/// all float32.
std::vector<ParameterShape> parameter_shapes(const TrainConfig& config);

/// Linear -> RMSNorm -> SiLU -> Linear. Which RMSNorm is the caller's at each call, so that two
/// paths differ in nothing else.
class Model {
 public:
  /// Parameters as libtorch starts them (uniform within 1/sqrt(inputs) of a layer; gamma of ones),
  /// drawn on the CPU from `seed`: the same bits on every device.
  Model(const TrainConfig& config, std::uint64_t seed, const c10::Device& device);

  /// [rows, outputs] of inputs [rows, inputs].
  at::Tensor predict(const at::Tensor& inputs, const NormFunction& norm) const;

  /// In the order of parameter_shapes.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const at::Tensor& gamma() const { return parameters_[2]; }

 private:
  std::vector<at::Tensor> parameters_;
};

}  // namespace rmsnorm
