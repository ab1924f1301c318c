#include "cli/program.hpp"
#include "support/catch.hpp"

// TRAIN and CKPT as a process: what can only be seen when one ends.

namespace rmsnorm::test {
namespace {

std::string config_text() {
  return "schema: 1\ndevice: cpu\ncontract: full\nimplementations: [rowwise, tuned]\n"
         "cases: {rows: [1, 3], cols: [31, 257], dtypes: [float32]}\n"
         "tolerance: {float32: {atol: 1.0e-5, rtol: 1.0e-4}}\n"
         "train: {inputs: 6, hidden: 17, outputs: 2, train_examples: 200, validation_examples: "
         "32,\n"
         "  test_examples: 48, steps: 5, batch: 16}\n";
}

TEST_CASE("B132 every subcommand ends with its own exit code, time after time", "[program]") {
  const Program program;
  program.write("c.yaml", config_text());
  const std::pair<std::vector<std::string>, int> runs[] = {
      {{"check-environment", "--config", "c.yaml"}, 0},
      {{"acquire", "--config", "c.yaml"}, 0},
      {{"reference", "--config", "c.yaml"}, 0},
      {{"check-forward", "--config", "c.yaml"}, 0},
      {{"check-backward", "--config", "c.yaml"}, 0},
      {{"check-gamma", "--config", "c.yaml"}, 0},
      {{"train-integration", "--config", "c.yaml", "--implementation", "tuned"}, 0},
      {{"check-checkpoints"}, 0},
      {{"clean", "--scope", "outputs", "--dry-run"}, 0},
      {{"check-forward", "--config", "c.yaml", "--case", "none"}, 4},
      {{"check-forward", "--config", "none.yaml"}, 3},
      {{"check-forward", "--config", "c.yaml", "--seed", "x"}, 2}};
  for (int round = 0; round < 2; ++round) {
    for (const auto& [arguments, want] : runs) {
      const ProcessResult result = program.run(arguments);
      CAPTURE(arguments, round, result.out, result.err);
      CHECK(result.exit_code == want);
    }
  }
}

TEST_CASE("B035 each key of a config can be left out: a default, or an error that names it",
          "[program]") {
  const Program program;
  const auto lines = lines_of(config_text());
  for (std::size_t left_out = 0; left_out < 6; ++left_out) {
    std::string text;
    for (std::size_t i = 0; i < lines.size(); ++i) text += i == left_out ? "" : lines[i] + "\n";
    const std::string key = lines[left_out].substr(0, lines[left_out].find(':'));
    program.write("less.yaml", text);
    const ProcessResult result = program.run({"check-forward", "--config", "less.yaml"});
    CAPTURE(key, result.err);
    const bool has_default = key == "device" || key == "contract";
    CHECK(result.exit_code == (has_default ? 0 : 2));
    if (!has_default) CHECK(result.err.find(key) != std::string::npos);
  }
}

TEST_CASE("B036 spellings of 1e-6 are one number in the effective config", "[program]") {
  const Program program;
  for (const std::string spelling : {"1e-6", "1.0e-6", "1E-6", ".000001"}) {
    program.write("c.yaml", config_text() + "epsilon: " + spelling + "\n");
    CHECK(program.run({"check-forward", "--config", "c.yaml"}).exit_code == 0);
    CHECK(program.json("outputs/check-forward.json")["config"]["epsilon"].get<double>() == 1e-6);
  }
}

TEST_CASE("B092 no broken config ends a subcommand other than by its exit code", "[program]") {
  const Program program;
  const std::string good = config_text();
  std::vector<std::string> texts{"", "\x01\x02\xff\xfe", "[1, 2]", "a: [", "- x\n"};
  for (const std::string rows : {"abc", "[-5]", "[0]", "[1e3]", "[[1]]", "1"}) {
    std::string text = good;
    texts.push_back(text.replace(text.find("[1, 3]"), 6, rows));
  }
  for (const std::string dtype : {"float17", "[]", "8"}) {
    std::string text = good;
    texts.push_back(text.replace(text.find("[float32]"), 9, "[" + dtype + "]"));
  }
  texts.push_back(good + "epsilon: abc\n");
  std::filesystem::create_directory(program.path("folder.yaml"));
  for (const std::string command :
       {"check-forward", "check-gamma", "reference", "train-integration", "acquire", "benchmark"}) {
    for (const std::string& text : texts) {
      program.write("bad.yaml", text);
      const ProcessResult result = program.run({command, "--config", "bad.yaml"});
      CAPTURE(command, text, result.err);
      CHECK(result.exit_code == 2);
      CHECK(result.err.find("bad.yaml:") != std::string::npos);
      if (command != "check-forward") break;  // one reader serves all
    }
    CHECK(program.run({command, "--config", "none.yaml"}).exit_code == 3);
    CHECK(program.run({command, "--config", "folder.yaml"}).exit_code == 2);
  }
}

}  // namespace
}  // namespace rmsnorm::test
