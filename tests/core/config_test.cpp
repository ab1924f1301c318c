#include "core/config.hpp"

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/config_support.hpp"
#include "core/files.hpp"
#include "support/catch.hpp"

using namespace config_test;
using rmsnorm::Config;
using rmsnorm::Dtype;
using rmsnorm::parse_config;

TEST_CASE("the minimum config is read as it is written") {
  const Config config = rmsnorm::read_config(minimum_file);
  CHECK(config.schema == 1);
  CHECK(config.seed == 20240601);
  CHECK(config.device == "auto");
  CHECK(config.contract == rmsnorm::Contract::minimum);
  CHECK(config.epsilon == 1e-6);
  CHECK_FALSE(config.implementations.empty());
  REQUIRE(config.cases.size() == 1);
  CHECK(config.cases[0].rows == std::vector<std::int64_t>{1, 3, 17, 64, 127, 128});
  CHECK(config.cases[0].cols == std::vector<std::int64_t>{1, 31, 256, 257, 1000, 4096});
  CHECK(config.cases[0].dtypes == std::vector{Dtype::float32, Dtype::float16});
  CHECK(config.tolerance.at(Dtype::float32).atol == 1e-5);
  CHECK(config.tolerance.at(Dtype::float32).rtol == 1e-4);
  CHECK(config.tolerance.at(Dtype::float16).atol == 3e-3);
  CHECK(config.train.steps == 100);
  CHECK(config.train.learning_rate == 3e-3);
  REQUIRE(config.benchmark.groups.size() == 1);
  CHECK(config.benchmark.groups[0].shapes ==
        std::vector<std::pair<std::int64_t, std::int64_t>>{{128, 257}});
}

TEST_CASE("B035 every key of the minimum config is either required or has a default") {
  const std::string text = rmsnorm::read_file(minimum_file);
  const std::vector<std::pair<std::string, std::string>> required = {
      {"schema", "schema"},
      {"implementations", "implementations"},
      {"cases", "cases"},
      {"tolerance", "tolerance"},
      {"rows", "cases.rows"},
      {"cols", "cases.cols"},
      {"float32", "tolerance.float32"},
      {"float16", "tolerance.float16"}};
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  int removed_keys = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::size_t indent = lines[i].find_first_not_of(' ');
    if (indent == std::string::npos || lines[i][indent] == '#') continue;
    const std::string key = lines[i].substr(indent, lines[i].find(':') - indent);
    const bool is_dtypes_of_cases =
        key == "dtypes" && lines[i - 1].find("cols") != std::string::npos;
    std::string without;
    for (std::size_t j = 0; j < lines.size(); ++j) {
      // With a section go its entries.
      bool inside = j == i;
      for (std::size_t k = i + 1; indent == 0 && k <= j; ++k) {
        inside = lines[k].starts_with(" ");
        if (!inside) break;
      }
      if (!inside) without += lines[j] + "\n";
    }
    ++removed_keys;
    const std::string error = error_of(without);
    CAPTURE(key, error);
    std::string path = is_dtypes_of_cases ? "cases.dtypes" : "";
    // The benchmark may name implementations of its own; those of the config are required.
    const bool is_benchmarks_own = key == "implementations" && indent > 0;
    for (const auto& [name, required_path] : required) {
      if (name == key && !is_benchmarks_own) path = required_path;
    }
    if (path.empty()) {
      CHECK(error == "accepted");
    } else {
      CHECK(error.find(": " + path + ": ") != std::string::npos);
      CHECK(error.find("; got nothing, the key is missing") != std::string::npos);
    }
  }
  CHECK(removed_keys > 30);
}

TEST_CASE("a missing key is reported at the line of the map that lacks it") {
  check_error(edited("schema: 1\n", ""),
              "c.yaml:1: schema: 1, the version of these keys; got nothing");
  check_error(edited("  rows: [1, 3]\n", ""), "c.yaml:5: cases.rows: a list of row counts");
  check_error(
      edited(", rtol: 1.0e-4", ""),
      "c.yaml:10: tolerance.float32.rtol: a number from 0 to 0.1; got nothing, the key is missing");
  check_error(edited("[float32]", "[float32, bfloat16]"),
              "c.yaml:9: tolerance.bfloat16: {atol: ..., rtol: ...}");
}

TEST_CASE("unknown and repeated keys are refused at their line") {
  check_error(edited("epsilon:", "epsilom:"),
              "c.yaml:3: epsilom: a key of schema, seed, device, contract, epsilon,");
  check_error(edited("  cols:", "  colls:"),
              "c.yaml:7: cases.colls: a key of rows, cols, shapes, dtypes");
  check_error(edited("atol:", "Atol:"),
              "c.yaml:10: tolerance.float32.Atol: a key of atol, rtol; got an unknown key");
  check_error(edited("  float32: {", "  float: {"),
              "c.yaml:10: tolerance.float: a key of float64, float32");
  check_error(edited("contract: full\n", "schema: 1\n"),
              "c.yaml:2: schema: a key that appears once; got it again");
  check_error(edited("rtol:", "atol:"),
              "c.yaml:10: tolerance.float32.atol: a key that appears once");
  check_error(edited("  cols: [1, 256]\n", "  cols: [1]\n  cols: [2]\n"),
              "c.yaml:8: cases.cols: a key that appears");
  check_error(with("train: {step: 3}\n"), "c.yaml:11: train.step: a key of inputs, hidden");
  check_error(with("benchmark:\n  warmup: 3\n"), "c.yaml:12: benchmark.warmup: a key of protocols");
  check_error(with("exercise: {rows: [3]}\n"), "c.yaml:11: exercise.rows: a key of cols");
  check_error(with("<<: {seed: 3}\n"), "c.yaml:11: <<: a key of schema");
  check_error(with("? [1, 2]\n: 3\n"), "c.yaml:11: config: a key that is a word; got a list");
}

TEST_CASE("B092 nodes of the wrong kind are refused") {
  check_error("", "c.yaml:1: config: a map with keys of schema");
  check_error("# nothing\n", "c.yaml:1: config: a map with keys of schema");
  check_error("[1, 2]\n", "c.yaml:1: config: a map with keys of schema");
  check_error("schema\n", "c.yaml:1: config: a map with keys of schema");
  check_error(edited("implementations: [rowwise]", "implementations: rowwise"),
              "c.yaml:4: implementations: a list of names, at least one; got rowwise");
  check_error(edited("[rowwise]", "[]"),
              "c.yaml:4: implementations: a list of names, at least one; got an empty list");
  check_error(edited("[rowwise]", ""),
              "c.yaml:4: implementations: a list of names, at least one; got nothing");
  check_error(edited("[rowwise]", "{rowwise: 1}"),
              "c.yaml:4: implementations: a list of names, at least one; got a map");
  check_error(edited("[1, 3]", "3"),
              "c.yaml:6: cases.rows: a list of row counts, at least one; got 3");
  check_error(edited("[1, 3]", "[]"),
              "c.yaml:6: cases.rows: a list of row counts, at least one; got an empty list");
  check_error(edited("[1, 3]", "[1, [3]]"),
              "c.yaml:6: cases.rows[1]: a whole number from 1 to 1099511627776; got a list");
  check_error(edited("schema: 1", "schema: {}"),
              "c.yaml:1: schema: 1, the version of these keys; got a map");
  check_error(edited("schema: 1", "schema: 2"),
              "c.yaml:1: schema: 1, the version of these keys; got 2");
  check_error(edited("schema: 1", "schema:"),
              "c.yaml:1: schema: 1, the version of these keys; got nothing");
  check_error(edited("{atol: 1.0e-5, rtol: 1.0e-4}", "1.0e-5"),
              "c.yaml:10: tolerance.float32: a map with keys of atol");
  check_error(with("train: []\n"), "c.yaml:11: train: a map with keys of inputs");
  check_error(with("train:\n"), "c.yaml:11: train: a map with keys of inputs");
}

TEST_CASE("implementations and devices are names of the documented forms") {
  const Config config = parse_config(
      edited("[rowwise]", "[reference, rowwise, tuned, aten, 'plugin:./my lib.so', mutant:gain]"),
      "c.yaml");
  CHECK(config.implementations.size() == 6);
  for (const std::string bad :
       {"Rowwise", "torch", "plugin:", "mutant:", "plugin", "\"plugin:a\\nb\"", "3"}) {
    CAPTURE(bad);
    check_error(edited("[rowwise]", "[" + bad + "]"),
                "c.yaml:4: implementations[0]: one of reference, rowwise, tuned, aten, "
                "plugin:PATH, mutant:NAME; got ");
  }
  for (const std::string good : {"auto", "cpu", "cuda", "cuda:0", "cuda:7", "cuda:127"}) {
    CAPTURE(good);
    CHECK(parse_config(with("device: " + good + "\n"), "c").device == good);
  }
  for (const std::string bad :
       {"gpu", "CPU", "cuda:", "cuda:-1", "cuda:01", "cuda:128", "cuda:x", "cuda:0 ", "cpu:0"}) {
    CAPTURE(bad);
    check_error(with("device: \"" + bad + "\"\n"),
                "c.yaml:11: device: one of auto, cpu, cuda, cuda:I");
  }
  check_error(edited("contract: full", "contract: max"),
              "c.yaml:2: contract: one of minimum, full; got max");
}

TEST_CASE("cases are a map or a list of maps with rows and cols or shapes") {
  const std::string lists = edited(
      "cases:\n  rows: [1, 3]\n  cols: [1, 256]\n  dtypes: [float32]\n",
      "cases:\n"
      "  - {rows: [1], cols: [2], dtypes: [float32], layouts: [heads, expanded_dy]}\n"
      "  - {shapes: [[3, 4], [5, 6]], dtypes: [float32], inputs: [scaled], gammas: [none]}\n");
  const Config config = parse_config(lists, "c.yaml");
  REQUIRE(config.cases.size() == 2);
  CHECK(config.cases[0].layouts ==
        std::vector{rmsnorm::Layout::heads, rmsnorm::Layout::expanded_dy});
  CHECK(config.cases[1].shapes ==
        std::vector<std::pair<std::int64_t, std::int64_t>>{{3, 4}, {5, 6}});
  CHECK(config.cases[1].inputs == std::vector{rmsnorm::InputKind::scaled});
  check_error(replaced(lists, "[5, 6]", "[5, 0]"),
              "c.yaml:7: cases[1].shapes[1][1]: a whole number from 1");
  check_error(replaced(lists, "[5, 6]", "[5]"),
              "c.yaml:7: cases[1].shapes[1]: a pair [rows, cols]; got a list");
  check_error(replaced(lists, "[5, 6]", "5x6"),
              "c.yaml:7: cases[1].shapes[1]: a pair [rows, cols]; got 5x6");
  check_error(replaced(lists, "inputs", "rows: [1], inputs"),
              "c.yaml:7: cases[1].shapes: either shapes, or rows and cols");
  check_error(replaced(lists, "heads", "head"),
              "c.yaml:6: cases[0].layouts[0]: one of contiguous, offset, row_strided");
  check_error(replaced(lists, "[none]", "[None]"),
              "c.yaml:7: cases[1].gammas[0]: one of same, float32, none; got None");
  check_error(replaced(lists, "[none]", "[float32]"),
              "c.yaml:7: cases[1].gammas: gamma float32 beside float16");
  check_error(replaced(lists, "scaled", "large"),
              "c.yaml:7: cases[1].inputs[0]: one of normal, scaled, special; got large");
  check_error(
      edited("cases:\n  rows: [1, 3]\n  cols: [1, 256]\n  dtypes: [float32]\n", "cases: []\n"),
      "c.yaml:5: cases: a list of maps of rows, cols, dtypes, at least one; got an empty list");
  check_error(edited("[float32]", "[float33]"),
              "c.yaml:8: cases.dtypes[0]: one of float64, float32, float16, bfloat16");
}

TEST_CASE("sizes that cannot be computed with are refused") {
  check_error(
      replaced(edited("[1, 3]", "[1, 1099511627776]"), "[1, 256]", "[1, 1099511627776]"),
      "c.yaml:7: cases.cols[1]: rows * cols of at most 2^60; got 1099511627776 x 1099511627776");
  std::string many = "1";
  for (int i = 2; i <= 300; ++i) many += ", " + std::to_string(i);
  check_error(replaced(edited("[1, 3]", "[" + many + "]"), "[1, 256]", "[" + many + "]"),
              "c.yaml:5: cases: at most 65536 cases; got 90000");
}

TEST_CASE("contract minimum holds the config inside the minimum") {
  const std::string minimum = edited("contract: full", "contract: minimum");
  REQUIRE(error_of(minimum) == "accepted");
  const auto check = [&](const std::string& from, const std::string& to,
                         const std::string& beginning) {
    check_error(replaced(minimum, from, to), beginning);
  };
  check("[1, 256]", "[1, 4097]",
        "c.yaml:7: cases.cols[1]: at most 4096 columns under contract minimum; got 1 x 4097");
  check("[1, 3]\n  cols: [1, 256]", "[4096, 4097]\n  cols: [256, 4096]",
        "c.yaml:7: cases.cols[1]: rows * cols * 4 bytes of at most 64 MiB under contract minimum; "
        "got 4097 x 4096");
  check("[float32]", "[bfloat16]",
        "c.yaml:8: cases.dtypes[0]: one of float32, float16 under contract minimum");
  check("[float32]", "[float64]",
        "c.yaml:8: cases.dtypes[0]: one of float32, float16 under contract minimum");
  check("[float32]\n", "[float32]\n  layouts: [contiguous, offset]\n",
        "c.yaml:9: cases.layouts[1]: contiguous under contract minimum; got offset");
  check("[float32]\n", "[float32]\n  gammas: [none]\n",
        "c.yaml:9: cases.gammas[0]: same under contract minimum; got none");
  check("  rows: [1, 3]\n  cols: [1, 256]\n", "  shapes: [[1, 5000]]\n",
        "c.yaml:6: cases.shapes[0]: at most 4096 columns under contract minimum; got 1 x 5000");
  check_error(minimum + "train: {hidden: 4097}\n", "c.yaml:11: train.hidden: at most 4096 columns");
  check_error(minimum + "benchmark: {shapes: [[1, 4097]]}\n",
              "c.yaml:11: benchmark.shapes[0]: at most 4096 columns");
  check_error(minimum + "benchmark: {dtypes: [bfloat16]}\n",
              "c.yaml:11: benchmark.dtypes[0]: one of float32, float16");
  check_error(minimum + "exercise: {cols: [4097]}\n",
              "c.yaml:11: exercise.cols[0]: at most 4096 columns");
}

TEST_CASE("a tolerance that everything or nothing meets is refused") {
  check_error(edited("1.0e-5", "0.11"),
              "c.yaml:10: tolerance.float32.atol: a number from 0 to 0.1; got 0.11");
  check_error(edited("1.0e-5", "-1"),
              "c.yaml:10: tolerance.float32.atol: a number from 0 to 0.1; got -1");
  check_error(edited("1.0e-4", ".nan"),
              "c.yaml:10: tolerance.float32.rtol: a number from 0 to 0.1; got .nan");
  check_error(edited("1.0e-5, rtol: 1.0e-4", "0, rtol: 0"),
              "c.yaml:10: tolerance.float32: atol or rtol above 0; got 0");
  CHECK(error_of(edited("1.0e-5", "0")) == "accepted");
}

TEST_CASE("B127 values of the train, benchmark and exercise sections have ranges") {
  for (const std::string key :
       {"inputs", "hidden", "outputs", "train_examples", "validation_examples", "test_examples",
        "steps", "batch", "validate_every", "keep_checkpoints"}) {
    CAPTURE(key);
    check_error(with("train:\n  " + key + ": 0\n"),
                "c.yaml:12: train." + key + ": a whole number from 1 to ");
    CHECK(error_of(with("train:\n  " + key + ": 64\n")) == "accepted");
  }
  CHECK(error_of(with("train: {checkpoint_every: 0}\n")) == "accepted");
  check_error(with("train: {noise: -0.1}\n"),
              "c.yaml:11: train.noise: a number from 0 to 1000; got -0.1");
  check_error(with("train: {learning_rate: 0}\n"),
              "c.yaml:11: train.learning_rate: a number above 0, at most 1; got 0");
  check_error(with("train:\n  train_examples: 8\n  batch: 9\n"),
              "c.yaml:13: train.batch: a batch of at most the 8 train_examples; got 9");
  check_error(with("train: {train_examples: 8}\n"),
              "c.yaml:11: train: a batch of at most the 8 train_examples; got 32");
  check_error(with("benchmark: {warmup_calls: 0}\n"),
              "c.yaml:11: benchmark.warmup_calls: a whole number from 1");
  check_error(with("benchmark: {samples: 2}\n"),
              "c.yaml:11: benchmark.samples: a whole number from 3");
  check_error(with("benchmark: {calls_per_sample: 0}\n"),
              "c.yaml:11: benchmark.calls_per_sample: a whole number from 1");
  check_error(with("benchmark: {protocols: [hot]}\n"),
              "c.yaml:11: benchmark.protocols[0]: one of calls, cold, graph");
  check_error(with("benchmark: {passes: [backwards]}\n"),
              "c.yaml:11: benchmark.passes[0]: one of forward, backward,");
  check_error(with("benchmark: {passes: [backward]}\n"),
              "c.yaml:11: benchmark.passes[0]: backward beside protocol cold");
  CHECK(error_of(with("benchmark: {protocols: [cold], passes: [backward]}\n")) == "accepted");
  check_error(with("benchmark: {dtypes: [bfloat16]}\n"),
              "c.yaml:9: tolerance.bfloat16: {atol: ..., rtol: ...}, as the dtype is under "
              "benchmark; got nothing");
  check_error(with("exercise: {cols: []}\n"),
              "c.yaml:11: exercise.cols: a list of column counts, at least one");
}

TEST_CASE("what is left out has the defaults of the structs") {
  const Config config = parse_config(small, "c.yaml");
  const Config defaults;
  CHECK(config.seed == defaults.seed);
  CHECK(config.train.hidden == 257);
  CHECK(config.train.batch == defaults.train.batch);
  CHECK(config.benchmark.samples == 50);
  CHECK(config.exercise.cols == std::vector<std::int64_t>{257, 256});
  CHECK(config.cases[0].layouts == std::vector{rmsnorm::Layout::contiguous});
}

TEST_CASE("the JSON of a config is a config with the same values") {
  for (const Config& config : {parse_config(small, "c.yaml"), rmsnorm::read_config(minimum_file)}) {
    const nlohmann::json json = to_json(config);
    CHECK(json.at("epsilon") == 1e-6);
    CHECK(json.at("train").at("hidden") == 257);
    CHECK(json.at("benchmark").at("shapes")[0] == nlohmann::json::array({128, 257}));
    CHECK(to_json(parse_config(json.dump(2), "echo.json")) == json);
  }
}
