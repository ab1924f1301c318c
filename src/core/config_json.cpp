#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/config.hpp"

namespace rmsnorm {
namespace {

template <class T>
nlohmann::json names(const std::vector<T>& values) {
  nlohmann::json list = nlohmann::json::array();
  for (const T& value : values) list.push_back(name(value));
  return list;
}

nlohmann::json grid_json(const CaseGrid& grid) {
  nlohmann::json json = {{"dtypes", names(grid.dtypes)},
                         {"layouts", names(grid.layouts)},
                         {"gammas", names(grid.gammas)},
                         {"inputs", names(grid.inputs)}};
  if (grid.shapes.empty()) {
    json["rows"] = grid.rows;
    json["cols"] = grid.cols;
  } else {
    json["shapes"] = grid.shapes;
  }
  return json;
}

nlohmann::json train_json(const TrainConfig& train) {
  return {{"inputs", train.inputs},
          {"hidden", train.hidden},
          {"outputs", train.outputs},
          {"train_examples", train.train_examples},
          {"validation_examples", train.validation_examples},
          {"test_examples", train.test_examples},
          {"noise", train.noise},
          {"steps", train.steps},
          {"batch", train.batch},
          {"learning_rate", train.learning_rate},
          {"validate_every", train.validate_every},
          {"checkpoint_every", train.checkpoint_every},
          {"keep_checkpoints", train.keep_checkpoints}};
}

nlohmann::json group_json(const BenchmarkGroup& group) {
  nlohmann::json json = {{"protocols", group.protocols},    {"passes", group.passes},
                         {"shapes", group.shapes},          {"dtypes", names(group.dtypes)},
                         {"layouts", names(group.layouts)}, {"gammas", names(group.gammas)}};
  if (!group.implementations.empty()) json["implementations"] = group.implementations;
  return json;
}

/// One group stands in the section itself, several in its list `groups`.
nlohmann::json benchmark_json(const BenchmarkConfig& benchmark) {
  nlohmann::json json = nlohmann::json::object();
  if (benchmark.groups.size() == 1) {
    json = group_json(benchmark.groups.front());
  } else {
    for (const BenchmarkGroup& group : benchmark.groups)
      json["groups"].push_back(group_json(group));
  }
  json["warmup_calls"] = benchmark.warmup_calls;
  json["samples"] = benchmark.samples;
  json["calls_per_sample"] = benchmark.calls_per_sample;
  json["full_check_elements"] = benchmark.full_check_elements;
  return json;
}

}  // namespace

std::string_view name(Layout layout) {
  switch (layout) {
    case Layout::contiguous:
      return "contiguous";
    case Layout::offset:
      return "offset";
    case Layout::row_strided:
      return "row_strided";
    case Layout::heads:
      return "heads";
    case Layout::expanded_dy:
      break;
  }
  return "expanded_dy";
}

std::string_view name(GammaKind kind) {
  switch (kind) {
    case GammaKind::same:
      return "same";
    case GammaKind::float32:
      return "float32";
    case GammaKind::none:
      break;
  }
  return "none";
}

std::string_view name(InputKind kind) {
  switch (kind) {
    case InputKind::normal:
      return "normal";
    case InputKind::scaled:
      return "scaled";
    case InputKind::special:
      break;
  }
  return "special";
}

std::string_view name(Contract contract) {
  return contract == Contract::minimum ? "minimum" : "full";
}

nlohmann::json to_json(const Config& config) {
  nlohmann::json json = {{"schema", config.schema},
                         {"seed", config.seed},
                         {"device", config.device},
                         {"contract", name(config.contract)},
                         {"epsilon", config.epsilon},
                         {"implementations", config.implementations},
                         {"train", train_json(config.train)},
                         {"benchmark", benchmark_json(config.benchmark)},
                         {"exercise", {{"cols", config.exercise.cols}}}};
  json["cases"] = nlohmann::json::array();
  for (const CaseGrid& grid : config.cases) json["cases"].push_back(grid_json(grid));
  json["tolerance"] = nlohmann::json::object();
  for (const auto& [dtype, tolerance] : config.tolerance) {
    json["tolerance"][std::string(name(dtype))] = {{"atol", tolerance.atol},
                                                   {"rtol", tolerance.rtol}};
  }
  return json;
}

}  // namespace rmsnorm
