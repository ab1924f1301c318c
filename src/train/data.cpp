#include "train/data.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>

#include <nlohmann/json.hpp>

#include "core/files.hpp"
#include "train/random.hpp"

namespace rmsnorm {
namespace {

constexpr std::int64_t kTeacherHidden = 16;
constexpr int kManifestSchema = 1;

struct SplitName {
  const char* name;
  Split Dataset::*split;
  std::int64_t TrainConfig::*examples;
};
constexpr std::array<SplitName, 3> kSplits{{
    {"train", &Dataset::train, &TrainConfig::train_examples},
    {"validation", &Dataset::validation, &TrainConfig::validation_examples},
    {"test", &Dataset::test, &TrainConfig::test_examples},
}};

std::string bytes_of(const Split& split) {
  std::string bytes;
  for (const at::Tensor& part : {split.inputs, split.targets}) {
    const at::Tensor dense = part.contiguous();
    bytes.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  }
  return bytes;
}

Split split_from(const std::string& bytes, std::int64_t examples, std::int64_t inputs,
                 std::int64_t outputs) {
  const auto copy = [&](std::size_t offset, std::int64_t cols) {
    at::Tensor tensor = at::empty({examples, cols}, at::kFloat);
    std::memcpy(tensor.mutable_data_ptr(), bytes.data() + offset, tensor.nbytes());
    return tensor;
  };
  return {copy(0, inputs),
          copy(static_cast<std::size_t>(examples * inputs) * sizeof(float), outputs)};
}

template <class T>
void require_equal(const std::filesystem::path& file, const char* what, const T& want,
                   const T& got) {
  if (want == got) return;
  throw DataError(fmt::format("{}: {} must be {}; got {}; run acquire again with this config",
                              file.string(), what, want, got));
}

}  // namespace

Dataset draw_dataset(const TrainConfig& config, std::uint64_t seed) {
  at::Generator teacher = seeded_generator(seed, "teacher");
  const double inputs_scale = 1.0 / std::sqrt(static_cast<double>(config.inputs));
  const at::Tensor first = at::randn({config.inputs, kTeacherHidden}, teacher, at::kFloat) * 2.0;
  const at::Tensor second = at::randn({kTeacherHidden, config.outputs}, teacher, at::kFloat) * 0.25;

  at::Generator draws = seeded_generator(seed, "examples");
  Dataset dataset;
  for (const SplitName& split : kSplits) {
    const std::int64_t examples = config.*split.examples;
    const at::Tensor direction = at::randn({examples, config.inputs}, draws, at::kFloat);
    const at::Tensor scale = at::exp(at::randn({examples, 1}, draws, at::kFloat) * 0.5);
    const at::Tensor clean = at::tanh(at::matmul(direction * inputs_scale, first)).matmul(second);
    const at::Tensor noise =
        at::randn({examples, config.outputs}, draws, at::kFloat) * config.noise;
    dataset.*split.split = {direction * scale, clean + noise};
  }
  return dataset;
}

void write_dataset(const std::filesystem::path& dir, const Dataset& dataset,
                   const TrainConfig& config, std::uint64_t seed) {
  nlohmann::json manifest{{"schema", kManifestSchema}, {"seed", seed},
                          {"dtype", "float32"},        {"inputs", config.inputs},
                          {"outputs", config.outputs}, {"noise", config.noise}};
  for (const SplitName& split : kSplits) {
    const std::string bytes = bytes_of(dataset.*split.split);
    const std::string file = std::string(split.name) + ".bin";
    write_file_atomically(dir / file, bytes);
    manifest["splits"][split.name] = {{"file", file},
                                      {"examples", config.*split.examples},
                                      {"bytes", bytes.size()},
                                      {"sha256", sha256(bytes)}};
  }
  write_file_atomically(dir / "manifest.json", manifest.dump(2) + "\n");
}

Dataset read_dataset(const std::filesystem::path& dir, const TrainConfig& config,
                     std::uint64_t seed) {
  const std::filesystem::path manifest_file = dir / "manifest.json";
  if (!std::filesystem::exists(manifest_file)) {
    throw MissingFileError(manifest_file.string() +
                           ": the data must be there; it is not: run acquire first");
  }
  Dataset dataset;
  try {
    const nlohmann::json manifest = nlohmann::json::parse(read_file(manifest_file));
    require_equal(manifest_file, "schema", kManifestSchema, manifest.at("schema").get<int>());
    require_equal(manifest_file, "seed", seed, manifest.at("seed").get<std::uint64_t>());
    require_equal(manifest_file, "inputs", config.inputs,
                  manifest.at("inputs").get<std::int64_t>());
    require_equal(manifest_file, "outputs", config.outputs,
                  manifest.at("outputs").get<std::int64_t>());
    require_equal(manifest_file, "noise", config.noise, manifest.at("noise").get<double>());
    for (const SplitName& split : kSplits) {
      const nlohmann::json& entry = manifest.at("splits").at(split.name);
      const std::int64_t examples = config.*split.examples;
      require_equal(manifest_file, (std::string(split.name) + " examples").c_str(), examples,
                    entry.at("examples").get<std::int64_t>());
      const std::filesystem::path file = dir / (std::string(split.name) + ".bin");
      const std::string bytes = read_file(file);
      const auto want_bytes =
          static_cast<std::size_t>(examples * (config.inputs + config.outputs)) * sizeof(float);
      require_equal(file, "size in bytes", want_bytes, bytes.size());
      require_equal(file, "SHA-256", entry.at("sha256").get<std::string>(), sha256(bytes));
      dataset.*split.split = split_from(bytes, examples, config.inputs, config.outputs);
    }
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: must be a manifest written by acquire; got {}",
                                manifest_file.string(), error.what()));
  }
  return dataset;
}

}  // namespace rmsnorm
