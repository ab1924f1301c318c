#include <map>
#include <set>

#include "cli/program.hpp"
#include "support/matchers.hpp"

namespace rmsnorm::test {
namespace {

const std::string kMinimum = std::string(RMSNORM_SOURCE_DIR) + "/configs/minimum.yaml";

TEST_CASE("The minimum config has 72 cases an implementation, and all pass", "[minimum]") {
  const Program program;
  for (const std::string command : {"check-forward", "check-backward", "check-gamma"}) {
    const ProcessResult result =
        program.run({command, "--config", kMinimum, "--device", "cpu", "--out", "reports"});
    CAPTURE(result.out, result.err);
    CHECK(result.exit_code == 0);
    const auto report = program.json("reports/" + command + ".json");
    std::map<std::string, std::set<std::string>> passed;
    for (const auto& entry : report["cases"]) {
      if (entry["state"] == "passed") passed[entry["implementation"]].insert(entry["name"]);
    }
    const std::size_t implementations = report["config"]["implementations"].size();
    CHECK(implementations >= 2);
    CHECK(passed.size() == implementations);
    for (const auto& [name, cases] : passed) {
      CAPTURE(name);
      CHECK(cases.size() == 72);
    }
    CHECK(report["cases"].size() == 72 * implementations);
    CHECK(report["environment"]["device"] == "cpu");
  }
}

TEST_CASE("The reference command passes on the minimum config", "[minimum]") {
  const Program program;
  const ProcessResult result = program.run({"reference", "--config", kMinimum, "--device", "cpu"});
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, contains_text("0.848528"));
  CHECK_THAT(result.out, contains_text("gradcheck of rowwise"));
  CHECK(program.json("outputs/reference.json")["verdict"] == "passed");
}

TEST_CASE("A report has the keys that scripts read", "[output]") {
  const Program program;
  REQUIRE(program.run({"check-forward", "--config", "small.yaml"}).exit_code == 0);
  const auto report = program.json("outputs/check-forward.json");
  const auto has = [](const nlohmann::json& object, const std::vector<std::string>& keys) {
    for (const std::string& key : keys) {
      CAPTURE(key);
      CHECK(object.contains(key));
    }
  };
  has(report, {"schema", "command", "tool", "argv", "config", "environment", "cases", "totals",
               "verdict", "exit_code"});
  has(report["tool"], {"version", "git", "dirty", "build_type"});
  has(report["environment"],
      {"device", "device_name", "sm", "libtorch", "cuda_runtime", "driver", "threads"});
  has(report["totals"], {"passed", "skipped", "mistrusted", "unimplemented", "failed", "error"});
  REQUIRE(report["cases"].size() == 4);
  has(report["cases"][0],
      {"name", "implementation", "rows", "cols", "dtype", "layout", "state", "reason", "compared",
       "mismatched", "max_abs_error", "max_rel_error", "row_rel_l2", "worst_index", "expected",
       "got", "used_of_tolerance", "repro"});
  CHECK(report["schema"] == 1);
  CHECK(report["command"] == "check-forward");
  CHECK(report["argv"][1] == "check-forward");
  CHECK(report["cases"][0]["name"] == "1x31-float32");
  CHECK(report["cases"][0]["compared"] == 31);
  CHECK(report["config"]["epsilon"] == 1e-6);
}

TEST_CASE("Help shows what there is and the defaults", "[output]") {
  const Program program;
  const ProcessResult help = program.run({"--help"});
  CHECK(help.exit_code == 0);
  for (const char* command : {"check-environment", "acquire", "reference", "check-forward",
                              "check-backward", "check-gamma"}) {
    CHECK_THAT(help.out, contains_text(command));
  }
  const ProcessResult check = program.run({"check-forward", "--help"});
  CHECK(check.exit_code == 0);
  for (const char* part : {"--config", "--device", "--implementation", "--case", "--seed", "--out",
                           "--quiet", "outputs", "artifacts", "REQUIRED"}) {
    CHECK_THAT(check.out, contains_text(part));
  }
  CHECK_FALSE(program.has("outputs"));
}

TEST_CASE("The version tells what was built and with what", "[output]") {
  const Program program;
  const ProcessResult version = program.run({"--version"});
  CHECK(version.exit_code == 0);
  for (const char* part : {"rmsnorm ", "git ", "libtorch ", "CUDA "}) {
    CHECK_THAT(version.out, contains_text(part));
  }
  CHECK(lines_of(version.out).size() == 1);
}

TEST_CASE("--quiet leaves the verdict, and the report", "[output]") {
  const Program program;
  const ProcessResult result = program.run({"check-forward", "--config", "small.yaml", "--quiet"});
  CHECK(result.exit_code == 0);
  CHECK(result.out == "verdict: PASSED, 4 of 4 cases passed\n");
  CHECK(result.err.empty());
  CHECK(program.has("outputs/check-forward.json"));
}

TEST_CASE("Output that is no terminal has no escapes, with NO_COLOR or without", "[output]") {
  const Program program;
  for (const std::string value : {"", "1"}) {
    const ProcessResult result = program.run({"check-forward", "--config", "small.yaml"},
                                             {{"NO_COLOR", value}, {"TERM", "xterm-256color"}});
    CHECK(result.out.find('\x1b') == std::string::npos);
    CHECK(result.out.find('\r') == std::string::npos);
    CHECK(result.err.empty());
  }
}

TEST_CASE("A repro reruns one case with the same numbers", "[output]") {
  const Program program;
  REQUIRE(program.run({"check-backward", "--config", "small.yaml", "--seed", "77"}).exit_code == 0);
  const auto all = program.json("outputs/check-backward.json");
  const auto& wanted = all["cases"][3];
  std::istringstream words(wanted["repro"].get<std::string>());
  std::vector<std::string> arguments;
  for (std::string word; words >> word;) arguments.push_back(word);
  arguments.erase(arguments.begin());
  REQUIRE(program.run(arguments).exit_code == 0);
  const auto one = program.json("outputs/check-backward.json");
  REQUIRE(one["cases"].size() == 1);
  CHECK(one["cases"][0] == wanted);
}

TEST_CASE("A seed of entropy is a fresh one, and is reported", "[output]") {
  const Program program;
  std::set<std::uint64_t> seeds;
  for (int i = 0; i < 2; ++i) {
    const ProcessResult result =
        program.run({"check-forward", "--config", "small.yaml", "--seed", "entropy"});
    CAPTURE(result.out, result.err);
    CHECK(result.exit_code == 0);
    const auto report = program.json("outputs/check-forward.json");
    const auto seed = report["config"]["seed"].get<std::uint64_t>();
    seeds.insert(seed);
    CHECK_THAT(report["cases"][0]["repro"].get<std::string>(),
               contains_text("--seed " + std::to_string(seed)));
  }
  CHECK(seeds.size() == 2);
}

TEST_CASE("Other seeds draw other inputs, the same seed the same", "[output]") {
  const Program program;
  const auto expected = [&](const std::string& seed) {
    static_cast<void>(program.run({"check-forward", "--config", "small.yaml", "--seed", seed}));
    return program.json("outputs/check-forward.json")["cases"][0]["expected"].get<double>();
  };
  CHECK(expected("5") == expected("5"));
  CHECK(expected("5") != expected("6"));
}

TEST_CASE("check-environment computes something and says what is there", "[output]") {
  const Program program;
  const ProcessResult result =
      program.run({"check-environment", "--config", "small.yaml", "--device", "cpu"});
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK_THAT(result.out, contains_text("libtorch") && contains_text("257 ones normalized"));
  CHECK(program.json("outputs/check-environment.json")["computation"].contains("max_abs_error"));
}

TEST_CASE("acquire makes the data and a manifest, and nothing else", "[output]") {
  const Program program;
  const ProcessResult result = program.run({"acquire", "--config", "small.yaml"});
  CAPTURE(result.out, result.err);
  CHECK(result.exit_code == 0);
  CHECK(program.has("artifacts/data"));
  CHECK(program.json("outputs/acquire.json")["verdict"] == "passed");
}

}  // namespace
}  // namespace rmsnorm::test
