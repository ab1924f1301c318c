#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/dtype.hpp"
#include "rmsnorm/contract.hpp"

namespace rmsnorm {

/// A config that cannot be used; what() is `file:line: key: what is allowed; got ...`, one line.
class ConfigError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// How x and dy lie in memory in a case. Values of the `layouts` key, spelled as here.
enum class Layout {
  contiguous,
  offset,       ///< contiguous rows whose first element is one element past an aligned address
  row_strided,  ///< rows with a stride above cols
  heads,        ///< rows in two levels, as a [tokens, heads, cols] slice of a fused qkv
  expanded_dy,  ///< contiguous x; one row of dy read for all rows (stride 0)
};

/// The gamma of a case: of x's dtype, float32 beside 16-bit x, or absent.
enum class GammaKind { same, float32, none };

/// `normal`: plain normal rows, judged by the elementwise rule and the row bounds alone. `scaled`:
/// row scales log-uniform from 1e-3 to 1e3. `special`: in turn a plain row, zeros, a row of scale
/// 1e-3, one with only its last element, one near float16's limit, one with a mean of 3. Both of
/// the latter multiply atol by max(1, rms of the wanted row), hold rows to what one rounding
/// leaves, and run the probes of check/probes.hpp.
enum class InputKind { normal, scaled, special };

std::string_view name(Layout layout);
std::string_view name(GammaKind kind);
std::string_view name(InputKind kind);
std::string_view name(Contract contract);

struct Tolerance {
  double atol = 0;
  double rtol = 0;
};

/// One entry under `cases` (a map, or a list of maps): the product of its lists. Either rows and
/// cols, or shapes.
struct CaseGrid {
  std::vector<std::int64_t> rows, cols;
  std::vector<std::pair<std::int64_t, std::int64_t>>
      shapes;  ///< [rows, cols] pairs instead of the product
  std::vector<Dtype> dtypes;
  std::vector<Layout> layouts{Layout::contiguous};
  std::vector<GammaKind> gammas{GammaKind::same};
  std::vector<InputKind> inputs{InputKind::normal};
};

struct TrainConfig {
  std::int64_t inputs = 32;   ///< features of an example
  std::int64_t hidden = 257;  ///< width that RMSNorm normalizes; not a power of two on purpose
  std::int64_t outputs = 4;
  std::int64_t train_examples = 4096;
  std::int64_t validation_examples = 512;
  std::int64_t test_examples = 1024;
  double noise = 0.1;  ///< standard deviation of the targets' noise
  std::int64_t steps = 100;
  std::int64_t batch = 32;
  double learning_rate = 3.0e-3;
  std::int64_t validate_every = 10;    ///< steps between points of the validation curve
  std::int64_t checkpoint_every = 50;  ///< steps; 0: only at the end
  std::int64_t keep_checkpoints = 3;
};

/// What is timed: the product of the lists, each protocol with those of the passes that it knows
/// (calls: forward and forward_backward; the others: forward and backward).
struct BenchmarkGroup {
  std::vector<std::string> protocols{"calls"};  ///< of calls, cold, graph, cold_write
  std::vector<std::string> passes{"forward", "forward_backward"};  ///< and backward
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes{{128, 257}};
  std::vector<Dtype> dtypes{Dtype::float32};
  std::vector<Layout> layouts{Layout::contiguous};  ///< not expanded_dy, which moves fewer bytes
  std::vector<GammaKind> gammas{GammaKind::same};
  std::vector<std::string> implementations;  ///< empty: those of the config
};

struct BenchmarkConfig {
  std::vector<BenchmarkGroup> groups{1};
  std::int64_t warmup_calls = 20;
  std::int64_t samples = 50;
  std::int64_t calls_per_sample = 20;
  /// A case of more elements is checked by a sample of its rows before it is timed, not by every
  /// element.
  std::int64_t full_check_elements = std::int64_t{1} << 27;
};

struct ExerciseConfig {
  std::vector<std::int64_t> cols{257, 256};
};

struct Config {
  std::int64_t schema = 1;
  std::uint64_t seed = 20240601;
  std::string device = "auto";  ///< auto, cpu, cuda, cuda:I
  Contract contract = Contract::minimum;
  double epsilon = 1.0e-6;
  std::vector<std::string> implementations;
  std::vector<CaseGrid> cases;
  std::map<Dtype, Tolerance> tolerance;  ///< one for each dtype in cases and in a benchmark section
  TrainConfig train;
  BenchmarkConfig benchmark;
  ExerciseConfig exercise;
};

/// Reads and checks a YAML config. Required keys: schema, implementations, cases, tolerance; the
/// others have the defaults above. Throws ConfigError for an unknown, repeated or missing key, a
/// wrong type, a value out of range, an anchor, alias or tag, more than 1 MiB, 32 levels or 65536
/// cases, or text that is not YAML; also for a file that is a folder or cannot be read. A file that
/// does not exist is MissingFileError. Under Contract::minimum the cases, and the sizes and dtypes
/// of the other sections, must lie inside that contract.
Config read_config(const std::filesystem::path& file);

/// The same from text; `file` names it in messages.
Config parse_config(const std::string& text, const std::string& file);

/// The file of a command line does not exist: exit 3, a requirement is missing.
class MissingFileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Every value in use, defaults included; the report's `config`.
nlohmann::json to_json(const Config& config);

}  // namespace rmsnorm
