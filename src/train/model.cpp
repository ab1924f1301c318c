#include "train/model.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "train/random.hpp"

namespace rmsnorm {
namespace {

at::Tensor uniform(const std::vector<std::int64_t>& sizes, std::int64_t layer_inputs,
                   at::Generator& generator) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(layer_inputs));
  return at::empty(sizes, at::kFloat).uniform_(-bound, bound, generator);
}

}  // namespace

std::vector<ParameterShape> parameter_shapes(const TrainConfig& config) {
  return {{"first", "weight", {config.hidden, config.inputs}},
          {"first", "bias", {config.hidden}},
          {"norm", "weight", {config.hidden}},
          {"second", "weight", {config.outputs, config.hidden}},
          {"second", "bias", {config.outputs}}};
}

Model::Model(const TrainConfig& config, std::uint64_t seed, const c10::Device& device) {
  const c10::NoGradGuard no_grad;
  at::Generator generator = seeded_generator(seed, "parameters");
  for (const ParameterShape& shape : parameter_shapes(config)) {
    const bool gamma = shape.module == "norm";
    const std::int64_t layer_inputs = shape.module == "first" ? config.inputs : config.hidden;
    const at::Tensor start =
        gamma ? at::ones(shape.sizes, at::kFloat) : uniform(shape.sizes, layer_inputs, generator);
    parameters_.push_back(start.to(device).set_requires_grad(true));
  }
}

at::Tensor Model::predict(const at::Tensor& inputs, const NormFunction& norm) const {
  const at::Tensor hidden = at::linear(inputs, parameters_[0], parameters_[1]);
  return at::linear(at::silu(norm(hidden, gamma())), parameters_[3], parameters_[4]);
}

}  // namespace rmsnorm
