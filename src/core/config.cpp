#include "core/config.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>
#include <system_error>

#include <nlohmann/json.hpp>

#include "core/config_reader.hpp"
#include "core/config_values.hpp"

namespace rmsnorm {
namespace {

constexpr std::int64_t max_cases = 65536;
constexpr double max_tolerance = 0.1;  // everything meets more than this

bool is_positive(double value) {
  return value > 0;
}
bool is_tolerance(double value) {
  return value >= 0 && value <= max_tolerance;
}
bool is_noise(double value) {
  return value >= 0 && value <= 1000;
}
bool is_learning_rate(double value) {
  return value > 0 && value <= 1;
}

std::optional<std::string> parse_device(std::string_view text) {
  constexpr std::string_view prefix = "cuda:";
  constexpr int max_index = 127;  // of libtorch's DeviceIndex
  if (text == "auto" || text == "cpu" || text == "cuda") return std::string(text);
  if (!text.starts_with(prefix)) return std::nullopt;
  const std::string_view digits = text.substr(prefix.size());
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  int index = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  const bool is_canonical = digits.size() == 1 || digits.front() != '0';
  if (parsed.ec != std::errc() || index > max_index || !is_canonical) return std::nullopt;
  return std::string(text);
}

std::int64_t count_cases(const CaseGrid& grid) {
  // Each list has at most half as many entries as the file has bytes; floating point cannot
  // overflow here.
  double count = grid.shapes.empty()
                     ? static_cast<double>(grid.rows.size()) * static_cast<double>(grid.cols.size())
                     : static_cast<double>(grid.shapes.size());
  for (const std::size_t size :
       {grid.dtypes.size(), grid.layouts.size(), grid.gammas.size(), grid.inputs.size()}) {
    count *= static_cast<double>(size);
  }
  return static_cast<std::int64_t>(std::min(count, 1e18));
}

void read_grid_shapes(const Section& grid, CaseGrid& out, Contract contract) {
  const auto shapes = grid.optional("shapes");
  if (shapes) {
    if (grid.optional("rows") || grid.optional("cols")) {
      shapes->refuse("either shapes, or rows and cols", "both");
    }
    out.shapes = read_shapes(*shapes, contract);
    return;
  }
  out.rows = grid.required("rows", "a list of row counts, beside cols (or shapes instead of both)")
                 .distinct("row counts", read_extent);
  out.cols =
      grid.required("cols", "a list of column counts, beside rows (or shapes instead of both)")
          .distinct("column counts", read_extent);
}

CaseGrid read_grid(const Value& value, Contract contract) {
  const Section grid(value, {"rows", "cols", "shapes", "dtypes", "layouts", "gammas", "inputs"});
  CaseGrid out;
  read_grid_shapes(grid, out, contract);
  const Value dtypes = grid.required("dtypes", "a list of dtypes");
  out.dtypes = read_dtypes(dtypes, contract);
  if (const auto list = grid.optional("layouts")) {
    out.layouts = list->distinct("layouts", [contract](const Value& entry) {
      return read_kind(entry,
                       {Layout::contiguous, Layout::offset, Layout::row_strided, Layout::heads,
                        Layout::expanded_dy},
                       Layout::contiguous, contract);
    });
  }
  if (const auto list = grid.optional("gammas")) {
    out.gammas = list->distinct("kinds of gamma", [contract](const Value& entry) {
      return read_kind(entry, {GammaKind::same, GammaKind::float32, GammaKind::none},
                       GammaKind::same, contract);
    });
    // float32 beside another dtype is `same` there and left out; nothing else would leave a grid
    // without cases.
    const bool only_float32 = out.gammas == std::vector{GammaKind::float32};
    const bool any_16_bit = std::any_of(out.dtypes.begin(), out.dtypes.end(),
                                        [](Dtype dtype) { return size_bytes(dtype) == 2; });
    if (only_float32 && !any_16_bit) {
      list->refuse("gamma float32 beside float16 or bfloat16 (use same)", "neither under dtypes");
    }
  }
  if (const auto list = grid.optional("inputs")) {
    out.inputs = list->distinct("kinds of inputs", [](const Value& entry) {
      return entry.one_of({InputKind::normal, InputKind::scaled, InputKind::special});
    });
  }
  if (const std::int64_t count = count_cases(out); count > max_cases) {
    value.refuse(fmt::format("at most {} cases", max_cases), fmt::format("{}", count));
  }
  if (out.shapes.empty()) {
    const std::vector<Value> cols = grid.required("cols", "").entries("column counts");
    for (std::size_t i = 0; i < cols.size(); ++i) {
      for (const std::int64_t rows : out.rows) require_shape(cols[i], rows, out.cols[i], contract);
    }
  }
  return out;
}

std::vector<CaseGrid> read_cases(const Value& value, Contract contract) {
  if (!value.is_list()) return {read_grid(value, contract)};
  std::vector<CaseGrid> grids;
  std::int64_t count = 0;
  for (const Value& entry : value.entries("maps of rows, cols, dtypes")) {
    grids.push_back(read_grid(entry, contract));
    count += count_cases(grids.back());
    if (count > max_cases)
      entry.refuse(fmt::format("at most {} cases in all", max_cases), fmt::format("{}", count));
  }
  return grids;
}

std::map<Dtype, Tolerance> read_tolerances(const Section& tolerances) {
  std::map<Dtype, Tolerance> out;
  for (const Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::float16, Dtype::bfloat16}) {
    const auto value = tolerances.optional(name(dtype));
    if (!value) continue;
    const std::string allowed = fmt::format("a number from 0 to {}", max_tolerance);
    const Section entry(*value, {"atol", "rtol"});
    const Tolerance tolerance{entry.required("atol", allowed).real(allowed, is_tolerance),
                              entry.required("rtol", allowed).real(allowed, is_tolerance)};
    if (tolerance.atol == 0 && tolerance.rtol == 0)
      value->refuse("atol or rtol above 0", "0 for both");
    out[dtype] = tolerance;
  }
  return out;
}

void require_tolerances(const Section& tolerances, const std::vector<Dtype>& dtypes,
                        std::string_view users) {
  for (const Dtype dtype : dtypes) {
    tolerances.required(name(dtype),
                        fmt::format("{{atol: ..., rtol: ...}}, as the dtype is under {}", users));
  }
}

void read_train(const Value& value, TrainConfig& out, Contract contract) {
  constexpr std::int64_t max_width = std::int64_t{1} << 20;
  const Section train(
      value, {"inputs", "hidden", "outputs", "train_examples", "validation_examples",
              "test_examples", "noise", "steps", "batch", "learning_rate", "validate_every",
              "checkpoint_every", "keep_checkpoints"});
  train.integer("inputs", out.inputs, 1, max_width);
  train.integer("hidden", out.hidden, 1, max_width);
  train.integer("outputs", out.outputs, 1, max_width);
  train.integer("train_examples", out.train_examples, 1, max_count);
  train.integer("validation_examples", out.validation_examples, 1, max_count);
  train.integer("test_examples", out.test_examples, 1, max_count);
  train.real("noise", out.noise, "a number from 0 to 1000", is_noise);
  train.integer("steps", out.steps, 1, max_count);
  train.integer("batch", out.batch, 1, max_count);
  train.real("learning_rate", out.learning_rate, "a number above 0, at most 1", is_learning_rate);
  train.integer("validate_every", out.validate_every, 1, max_count);
  train.integer("checkpoint_every", out.checkpoint_every, 0, max_count);
  train.integer("keep_checkpoints", out.keep_checkpoints, 1, 1000);
  if (out.batch > out.train_examples) {
    train.optional("batch").value_or(value).refuse(
        fmt::format("a batch of at most the {} train_examples", out.train_examples),
        fmt::format("{}", out.batch));
  }
  require_shape(train.optional("hidden").value_or(value), out.batch, out.hidden, contract);
}

void read_exercise(const Value& value, ExerciseConfig& out, Contract contract) {
  const Section exercise(value, {"cols"});
  if (const auto list = exercise.optional("cols")) {
    out.cols = list->distinct("column counts", [contract](const Value& entry) {
      const std::int64_t cols = read_extent(entry);
      require_shape(entry, 1, cols, contract);
      return cols;
    });
  }
}

Config read_root(const Value& value) {
  const Section root(value, {"schema", "seed", "device", "contract", "epsilon", "implementations",
                             "cases", "tolerance", "train", "benchmark", "exercise"});
  Config config;
  config.schema = root.required("schema", "1, the version of these keys")
                      .parsed("1, the version of these keys", [](std::string_view text) {
                        return text == "1" ? std::optional<std::int64_t>(1) : std::nullopt;
                      });
  if (const auto seed = root.optional("seed")) {
    config.seed =
        static_cast<std::uint64_t>(seed->integer(0, std::numeric_limits<std::int64_t>::max()));
  }
  if (const auto device = root.optional("device")) {
    config.device =
        device->parsed("one of auto, cpu, cuda, cuda:I with I from 0 to 127", parse_device);
  }
  if (const auto contract = root.optional("contract")) {
    config.contract = contract->one_of({Contract::minimum, Contract::full});
  }
  root.real("epsilon", config.epsilon, "a finite number above 0", is_positive);
  config.implementations =
      read_implementations(root.required("implementations", "a list of names"));
  config.cases =
      read_cases(root.required("cases", "a map of rows, cols, dtypes, or a list of such maps"),
                 config.contract);
  const Section tolerances(root.required("tolerance", "a map of dtype to {atol: ..., rtol: ...}"),
                           {"float64", "float32", "float16", "bfloat16"});
  config.tolerance = read_tolerances(tolerances);
  for (const CaseGrid& grid : config.cases) require_tolerances(tolerances, grid.dtypes, "cases");
  if (const auto train = root.optional("train")) read_train(*train, config.train, config.contract);
  if (const auto benchmark = root.optional("benchmark")) {
    read_benchmark(*benchmark, config.benchmark, config.contract);
    for (const BenchmarkGroup& group : config.benchmark.groups) {
      require_tolerances(tolerances, group.dtypes, "benchmark");
    }
  }
  if (const auto exercise = root.optional("exercise"))
    read_exercise(*exercise, config.exercise, config.contract);
  return config;
}

}  // namespace

Config parse_config(const std::string& text, const std::string& file) {
  const YamlNode root = read_yaml(text, file);
  return read_root(Value(file, root, "", 1));
}

Config read_config(const std::filesystem::path& file) {
  const std::string file_name = file.string();
  const auto refuse = [&](std::string_view got) {
    refuse_config(file_name, 1, "config", "a readable YAML file", got);
  };
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(file, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw MissingFileError(
        fmt::format("{}: the config file must exist; found no such file: check the path, or start "
                    "from configs/minimum.yaml",
                    shown(file_name, std::string::npos)));
  }
  if (error) refuse(error.message());
  if (std::filesystem::is_directory(status)) refuse("a folder");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) refuse(std::generic_category().message(errno));
  // One byte more than is allowed, so that an endless file is refused like any other that is too
  // long.
  std::string text(max_config_bytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) refuse("a file that cannot be read");
  text.resize(static_cast<std::size_t>(stream.gcount()));
  return parse_config(text, file_name);
}

}  // namespace rmsnorm
