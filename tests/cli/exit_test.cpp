#include "cli/program.hpp"
#include "operator/device.hpp"
#include "support/matchers.hpp"

// Exit codes: 0 passed, 1 a check failed, 2 usage or config, 3 something is missing, 4 nothing
// compared.

namespace rmsnorm::test {
namespace {

void check_exit(const ProcessResult& result, int want,
                const std::vector<std::string>& in_err = {}) {
  CAPTURE(result.out, result.err);
  CHECK_FALSE(result.timed_out);
  CHECK(result.exit_code == want);
  for (const std::string& part : in_err) CHECK_THAT(result.err, contains_text(part));
}

TEST_CASE("All passed is 0, and stdout ends with the verdict", "[exit]") {
  const Program program;
  for (const std::string command : {"check-forward", "check-backward", "check-gamma"}) {
    const ProcessResult result = program.run({command, "--config", "small.yaml"});
    check_exit(result, 0);
    CHECK(last_line(result.out) == "verdict: PASSED, 4 of 4 cases passed");
    CHECK(result.err.empty());
    CHECK(program.json("outputs/" + command + ".json")["exit_code"] == 0);
  }
}

TEST_CASE("Bad usage is 2", "[exit]") {
  const Program program;
  const std::vector<std::vector<std::string>> wrong{
      {},
      {"no-such-command"},
      {"check-forward"},
      {"check-forward", "--config"},
      {"check-forward", "--config", "small.yaml", "--no-such-flag"},
      {"check-forward", "--config", "small.yaml", "surplus"},
      {"--no-such-flag"},
      {"check-forward", "--config", "small.yaml", "--device", "gpu"},
      {"check-forward", "--config", "small.yaml", "--device", "cuda:"},
      {"check-forward", "--config", "small.yaml", "--device", "cuda:-1"},
      {"check-forward", "--config", "small.yaml", "--device", "cuda:1x"},
      {"check-forward", "--config", "small.yaml", "--seed", "-1"},
      {"check-forward", "--config", "small.yaml", "--seed", "many"},
      {"check-forward", "--config", "small.yaml", "--seed", "99999999999999999999999"}};
  for (const auto& arguments : wrong) {
    CAPTURE(arguments);
    const ProcessResult result = program.run(arguments);
    check_exit(result, 2);
    CHECK_FALSE((result.err + result.out).empty());
  }
}

TEST_CASE("B092 A bad config is 2, with file, line and key, and a report", "[exit]") {
  const Program program;
  const auto refused = [&](const std::string& text, const std::string& place) {
    program.write("bad.yaml", text);
    const ProcessResult result = program.run({"check-forward", "--config", "bad.yaml"});
    CAPTURE(text);
    check_exit(result, 2, {"bad.yaml:" + place, "; got "});
    CHECK(last_line(result.out).starts_with("verdict: FAILED"));
    CHECK(program.json("outputs/check-forward.json")["exit_code"] == 2);
    CHECK(program.json("outputs/check-forward.json")["verdict"] == "failed");
  };
  const std::string good = Program::small_config();
  refused(good + "surplus: 1\n", "10: surplus");
  refused(good + "schema: 1\n", "10: schema");
  refused(good + "epsilon: .nan\n", "10: epsilon");
  refused(good + "epsilon: -1\n", "10: epsilon");
  refused(good + "seed: [1]\n", "10: seed");
  refused("schema: 2\n" + good.substr(good.find('\n') + 1), "1: schema");
  refused("schema: 1\n", "1: implementations");
  refused("", "1: ");
  refused("a: [\n", "");
}

TEST_CASE("What is missing is 3 and says what to do", "[exit]") {
  const Program program;
  check_exit(program.run({"check-forward", "--config", "none.yaml"}), 3,
             {"none.yaml", "must exist"});
  CHECK(program.json("outputs/check-forward.json")["exit_code"] == 3);
  check_exit(program.run({"check-forward", "--config", "small.yaml", "--implementation",
                          "plugin:/no/such.so"}),
             3, {"plugin:/no/such.so", "must load"});
  check_exit(
      program.run({"check-forward", "--config", "small.yaml", "--implementation", "colwise"}), 3,
      {"colwise", "rowwise"});
}

TEST_CASE("--device cuda without a device is 3 and says what to do", "[exit]") {
  const Program program;
  if (cuda_problem(0).empty()) {
    // There is one: then the one that is not there.
    check_exit(program.run({"check-forward", "--config", "small.yaml", "--device", "cuda:99"}), 3,
               {"cuda:99 does not exist"});
    return;
  }
  for (const std::string device : {"cuda", "cuda:0"}) {
    const ProcessResult result =
        program.run({"check-forward", "--config", "small.yaml", "--device", device});
    check_exit(result, 3, {"--device cuda", "--device cpu"});
    CHECK(program.json("outputs/check-forward.json")["cases"].empty());
    CHECK_FALSE(program.json("outputs/check-forward.json")["failures"].empty());
  }
  const ProcessResult chosen =
      program.run({"check-forward", "--config", "small.yaml", "--device", "auto"});
  check_exit(chosen, 0);
  CHECK_THAT(lines_of(chosen.out).front(), contains_text("device: cpu"));
  CHECK_THAT(lines_of(chosen.out).front(), contains_text("auto, because"));
  CHECK(program.json("outputs/check-forward.json")["environment"]["device"] == "cpu");
}

TEST_CASE("A filter that matches nothing is 4", "[exit]") {
  const Program program;
  const ProcessResult result =
      program.run({"check-forward", "--config", "small.yaml", "--case", "7x7-float32"});
  check_exit(result, 4, {"7x7-float32"});
  CHECK_THAT(last_line(result.out), contains_text("verdict: NOTHING COMPARED"));
  CHECK(program.json("outputs/check-forward.json")["exit_code"] == 4);
}

TEST_CASE("A report that cannot be written is 1, and what was there stays", "[exit]") {
  const Program program;
  program.write("file", "precious");
  const ProcessResult result =
      program.run({"check-forward", "--config", "small.yaml", "--out", "file/below"});
  check_exit(result, 1, {"file/below"});
  std::ifstream stream(program.path("file"));
  std::string text;
  std::getline(stream, text);
  CHECK(text == "precious");
}

TEST_CASE("A wrong plug-in is 1, with hints and a repro that fails alike", "[exit]") {
  const Program program;
  const std::string wrong = std::string("plugin:") + RMSNORM_TEST_PLUGIN_WRONG;
  program.write("both.yaml", "schema: 1\ndevice: cpu\nimplementations: [\"" + wrong +
                                 "\"]\ncases:\n  rows: [3]\n  cols: [256, 257]\n"
                                 "  dtypes: [float32]\ntolerance:\n"
                                 "  float32: {atol: 1.0e-5, rtol: 1.0e-4}\n");
  const ProcessResult result = program.run({"check-forward", "--config", "both.yaml"});
  check_exit(result, 1);
  CHECK_THAT(result.out, contains_text("hint: ") && contains_text("denominator") &&
                             contains_text("repro: rmsnorm check-forward"));
  const auto report = program.json("outputs/check-forward.json");
  CHECK(report["verdict"] == "failed");
  CHECK(report["totals"]["passed"] == 1);
  CHECK(report["totals"]["failed"] == 1);
  CHECK_FALSE(report["hints"].empty());
  CHECK(report["cases"][0]["state"] == "passed");
  CHECK(report["cases"][1]["state"] == "failed");
  // All but where gamma is zero: every 7th column.
  CHECK(report["cases"][1]["mismatched"] == 3 * (257 - 257 / 7));

  std::istringstream words(report["cases"][1]["repro"].get<std::string>());
  std::vector<std::string> arguments;
  for (std::string word; words >> word;) arguments.push_back(word);
  REQUIRE(arguments.front() == "rmsnorm");
  arguments.erase(arguments.begin());
  check_exit(program.run(arguments), 1);
  const auto again = program.json("outputs/check-forward.json");
  REQUIRE(again["cases"].size() == 1);
  CHECK(again["cases"][0] == report["cases"][1]);
}

TEST_CASE("An interrupt is 130, and the report holds what was done", "[exit]") {
  const Program program;
  program.write("long.yaml",
                "schema: 1\ndevice: cpu\nimplementations: [reference]\ncases:\n"
                "  rows: [4090, 4091, 4092, 4093, 4094, 4095, 4096]\n"
                "  cols: [4090, 4091, 4092, 4093, 4094, 4095, 4096]\n"
                "  dtypes: [float32]\ntolerance:\n  float32: {atol: 1.0e-5, rtol: 1.0e-4}\n");
  // --foreground: once, to the program alone; to its group too it would be the second signal, which
  // kills.
  const ProcessResult result =
      run_process({"timeout", "--foreground", "--preserve-status", "-s", "INT", "3",
                   RMSNORM_TEST_PROGRAM, "check-backward", "--config", "long.yaml"},
                  {.dir = program.path(""), .variables = {}, .timeout = std::chrono::seconds(60)});
  check_exit(result, 130, {"interrupted"});
  CHECK_THAT(last_line(result.out), contains_text("verdict: INTERRUPTED"));
  const auto report = program.json("outputs/check-backward.json");
  CHECK(report["exit_code"] == 130);
  CHECK(report["cases"].size() < 49);
}

TEST_CASE("A right plug-in is 0", "[exit]") {
  const Program program;
  const std::string right = std::string("plugin:") + RMSNORM_TEST_PLUGIN;
  check_exit(program.run({"check-gamma", "--config", "small.yaml", "--implementation", right}), 0);
  CHECK(program.json("outputs/check-gamma.json")["cases"][0]["implementation"] == right);
}

}  // namespace
}  // namespace rmsnorm::test
