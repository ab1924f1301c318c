#include "train/checkpoint_archive.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>

#include "core/files.hpp"

namespace rmsnorm {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

/// Tensors beside those of the parameters' shapes, at the archive's top level.
constexpr std::string_view kOtherTensors[] = {"adam_steps", "order_generator", "losses",
                                              "validation_steps", "validation_mse"};
constexpr std::string_view kGroups[] = {"model", "exp_avg", "exp_avg_sq"};

std::string text(at::IntArrayRef sizes) {
  return fmt::format("[{}]", fmt::join(sizes.begin(), sizes.end(), ", "));
}

/// model.first.weight and so on, as a module of modules writes itself.
void write_group(OutputArchive& archive, std::string_view group,
                 const std::vector<ParameterShape>& shapes, const std::vector<at::Tensor>& values) {
  std::map<std::string, OutputArchive> modules;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    OutputArchive& module =
        modules.try_emplace(shapes[i].module, archive.compilation_unit()).first->second;
    module.write(shapes[i].name, values[i]);
  }
  OutputArchive whole(archive.compilation_unit());
  for (auto& [name, module] : modules) whole.write(name, module);
  archive.write(std::string(group), whole);
}

/// Reads an archive of which every key must be known.
class Reader {
 public:
  Reader(std::string file, InputArchive& archive, std::string prefix)
      : file_(std::move(file)), archive_(archive), prefix_(std::move(prefix)) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& want,
                           const std::string& got) const {
    throw CheckpointError(
        fmt::format("{}: {}{} must be {}; got {}", file_, prefix_, key, want, got));
  }

  /// Sizes empty: any of one dimension.
  at::Tensor tensor(const std::string& key, at::ScalarType type,
                    const std::optional<std::vector<std::int64_t>>& sizes) const {
    const std::string want = fmt::format("{}{}", at::toString(type), sizes ? text(*sizes) : "[*]");
    at::Tensor value;
    if (!has(key) || !archive_.try_read(key, value, true)) {
      value = at::Tensor();
      if (!has(key) || !archive_.try_read(key, value)) refuse(key, want, "nothing: it is missing");
    }
    const bool fits = value.defined() && value.layout() == at::kStrided &&
                      value.scalar_type() == type &&
                      (sizes ? value.sizes() == at::IntArrayRef(*sizes) : value.dim() == 1);
    if (!fits) {
      refuse(key, want,
             value.defined()
                 ? fmt::format("{}{}", at::toString(value.scalar_type()), text(value.sizes()))
                 : "an undefined tensor");
    }
    return value.detach().clone(at::MemoryFormat::Contiguous);
  }

  InputArchive inner(const std::string& key) const {
    InputArchive result;
    if (!has(key) || !archive_.try_read(key, result))
      refuse(key, "a part of the archive", "nothing: it is missing");
    return result;
  }

  void require_no_other_keys(const std::vector<std::string>& known) const {
    for (const std::string& key : archive_.keys()) {
      if (std::find(known.begin(), known.end(), key) == known.end())
        refuse(key, "absent", "an entry that this model does not have");
    }
  }

 private:
  bool has(const std::string& key) const {
    const std::vector<std::string> keys = archive_.keys();
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  }

  std::string file_;
  InputArchive& archive_;
  std::string prefix_;
};

std::vector<at::Tensor> read_group(const std::string& file, const Reader& top,
                                   const std::string& group,
                                   const std::vector<ParameterShape>& shapes) {
  InputArchive archive = top.inner(group);
  const Reader reader(file, archive, group + ".");
  std::map<std::string, std::vector<std::string>> names;
  for (const ParameterShape& shape : shapes) names[shape.module].push_back(shape.name);
  std::vector<std::string> modules;
  for (const auto& [module, known] : names) modules.push_back(module);
  reader.require_no_other_keys(modules);
  std::vector<at::Tensor> values;
  for (const ParameterShape& shape : shapes) {
    InputArchive module = reader.inner(shape.module);
    const Reader inner(file, module, fmt::format("{}.{}.", group, shape.module));
    inner.require_no_other_keys(names[shape.module]);
    values.push_back(inner.tensor(shape.name, at::kFloat, shape.sizes));
  }
  return values;
}

template <class T>
std::vector<T> to_vector(const at::Tensor& tensor) {
  const T* first = tensor.const_data_ptr<T>();
  return {first, first + tensor.numel()};
}

template <class T>
at::Tensor to_tensor(const std::vector<T>& values) {
  return at::tensor(values, c10::CppTypeToScalarType<T>::value);
}

template <class T>
void require_equal(const OpenCheckpoint& checkpoint, const std::string& key, const T& want,
                   const T& got) {
  if (want == got) return;
  throw CheckpointError(
      fmt::format("{}: {} must be {}; got {}", checkpoint.file.string(), key, want, got));
}

std::vector<std::string> keys_of(const std::vector<ParameterShape>& shapes) {
  std::vector<std::string> keys;
  for (const ParameterShape& shape : shapes) keys.push_back(shape.key());
  return keys;
}

Snapshot read_meta(const OpenCheckpoint& checkpoint, const std::vector<ParameterShape>& shapes) {
  const nlohmann::json& meta = checkpoint.meta;
  Snapshot result;
  result.identity = checkpoint.identity();
  result.origin = meta.at("origin");
  result.adam = meta.at("adam");
  result.step = meta.at("step").get<std::int64_t>();
  result.calls.forward = meta.at("calls").at("forward").get<std::int64_t>();
  result.calls.backward = meta.at("calls").at("backward").get<std::int64_t>();
  result.calls.copies = meta.at("calls").at("copies").get<std::int64_t>();
  result.order.position = meta.at("order_position").get<std::int64_t>();
  // The optimizer knows its parameters by their order only.
  require_equal(checkpoint, "parameters", keys_of(shapes),
                meta.at("parameters").get<std::vector<std::string>>());
  if (result.step < 0) require_equal(checkpoint, "step", std::int64_t{0}, result.step);
  return result;
}

void read_tensors(const OpenCheckpoint& checkpoint, const std::vector<ParameterShape>& shapes,
                  Snapshot& result) {
  const std::string file = checkpoint.file.string();
  InputArchive archive;
  archive.load_from(checkpoint.archive.data(), checkpoint.archive.size(), c10::Device(c10::kCPU));
  const Reader top(file, archive, "");
  std::vector<std::string> known(std::begin(kGroups), std::end(kGroups));
  known.insert(known.end(), std::begin(kOtherTensors), std::end(kOtherTensors));
  top.require_no_other_keys(known);

  result.parameters = read_group(file, top, "model", shapes);
  const std::vector<at::Tensor> exp_avg = read_group(file, top, "exp_avg", shapes);
  const std::vector<at::Tensor> exp_avg_sq = read_group(file, top, "exp_avg_sq", shapes);
  const auto count = static_cast<std::int64_t>(shapes.size());
  const auto steps = to_vector<std::int64_t>(top.tensor("adam_steps", at::kLong, {{count}}));
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    require_equal(checkpoint, "adam_steps of " + shapes[i].key(), result.step, steps[i]);
    result.moments.push_back({steps[i], exp_avg[i], exp_avg_sq[i]});
  }
  result.order.generator = top.tensor("order_generator", at::kByte, std::nullopt);
  result.losses = to_vector<double>(top.tensor("losses", at::kDouble, {{result.step}}));
  const auto points =
      to_vector<std::int64_t>(top.tensor("validation_steps", at::kLong, std::nullopt));
  const std::int64_t point_count = static_cast<std::int64_t>(points.size());
  const auto mse = to_vector<double>(top.tensor("validation_mse", at::kDouble, {{point_count}}));
  for (std::size_t i = 0; i < points.size(); ++i) result.validation.push_back({points[i], mse[i]});
}

}  // namespace

nlohmann::json describe(const Snapshot& snapshot, const std::vector<ParameterShape>& shapes) {
  return {{"identity", snapshot.identity},
          {"origin", snapshot.origin},
          {"step", snapshot.step},
          {"calls",
           {{"forward", snapshot.calls.forward},
            {"backward", snapshot.calls.backward},
            {"copies", snapshot.calls.copies}}},
          {"adam", snapshot.adam},
          {"order_position", snapshot.order.position},
          {"parameters", keys_of(shapes)}};
}

std::string encode_tensors(const Snapshot& snapshot, const std::vector<ParameterShape>& shapes) {
  std::vector<at::Tensor> exp_avg, exp_avg_sq;
  std::vector<std::int64_t> steps, points;
  std::vector<double> mse;
  for (const Moments& moments : snapshot.moments) {
    exp_avg.push_back(moments.exp_avg);
    exp_avg_sq.push_back(moments.exp_avg_sq);
    steps.push_back(moments.step);
  }
  for (const ValidationPoint& point : snapshot.validation) {
    points.push_back(point.step);
    mse.push_back(point.mse);
  }
  OutputArchive archive;
  write_group(archive, "model", shapes, snapshot.parameters);
  write_group(archive, "exp_avg", shapes, exp_avg);
  write_group(archive, "exp_avg_sq", shapes, exp_avg_sq);
  archive.write("adam_steps", to_tensor(steps), true);
  archive.write("order_generator", snapshot.order.generator, true);
  archive.write("losses", to_tensor(snapshot.losses), true);
  archive.write("validation_steps", to_tensor(points), true);
  archive.write("validation_mse", to_tensor(mse), true);
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
}

Snapshot read_snapshot(const OpenCheckpoint& checkpoint,
                       const std::vector<ParameterShape>& shapes) {
  try {
    Snapshot result = read_meta(checkpoint, shapes);
    read_tensors(checkpoint, shapes, result);
    return result;
  } catch (const CheckpointError&) {
    throw;
  } catch (const std::exception& error) {
    // libtorch's and the JSON library's own refusals.
    throw CheckpointError(fmt::format("{}: must be a complete checkpoint; {}",
                                      checkpoint.file.string(), first_line(error.what())));
  }
}

}  // namespace rmsnorm
