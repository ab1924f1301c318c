#include "core/report.hpp"

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>

#include "core/files.hpp"
#include "support/catch.hpp"

using rmsnorm::Exit;
using rmsnorm::Report;
using rmsnorm::State;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();

rmsnorm::CaseResult result_of(State state) {
  rmsnorm::CaseResult result;
  result.problem = {128, 257, rmsnorm::Dtype::float32};
  result.implementation = "rowwise";
  result.comparison.state = state;
  result.comparison.compared = state == State::passed ? 32896 : 0;
  result.repro = "rmsnorm check-forward --case 128x257-float32";
  return result;
}

Report report_of(std::initializer_list<State> states) {
  Report report("check-forward", {"rmsnorm", "check-forward"});
  for (const State state : states) report.add(result_of(state));
  return report;
}

std::set<std::string> keys_of(const nlohmann::json& json) {
  std::set<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.insert(key);
  return keys;
}

std::filesystem::path scratch_folder(const std::string& name) {
  const auto folder = std::filesystem::temp_directory_path() / ("rmsnorm-report-test-" + name);
  std::filesystem::remove_all(folder);
  return folder;
}

}  // namespace

TEST_CASE("the verdict follows from the cases, the failures and nothing else") {
  CHECK(report_of({}).verdict() == Exit::nothing);
  CHECK(report_of({State::skipped, State::skipped}).verdict() == Exit::nothing);
  CHECK(report_of({State::passed}).verdict() == Exit::passed);
  CHECK(report_of({State::passed, State::skipped}).verdict() == Exit::passed);
  for (const State bad : {State::mistrusted, State::unimplemented, State::failed, State::error}) {
    CAPTURE(rmsnorm::name(bad));
    CHECK(report_of({State::passed, bad, State::passed}).verdict() == Exit::failed);
    CHECK(report_of({bad}).verdict() == Exit::failed);
  }
}

TEST_CASE("a failure beside the cases cannot be outvoted") {
  Report report = report_of({State::passed});
  report.fail("outputs: no space left");
  CHECK(report.verdict() == Exit::failed);
  report.passes_without_cases();
  CHECK(report.verdict() == Exit::failed);
}

TEST_CASE("a command without cases passes only when it says so") {
  Report report("clean", {"rmsnorm", "clean"});
  CHECK(report.verdict() == Exit::nothing);
  report.passes_without_cases();
  CHECK(report.verdict() == Exit::passed);
  CHECK(report.verdict_line(Exit::passed) == "verdict: PASSED");
}

TEST_CASE("the verdict line counts the cases by state") {
  CHECK(report_of({State::passed, State::passed}).verdict_line(Exit::passed) ==
        "verdict: PASSED, 2 of 2 cases passed");
  CHECK(report_of({State::passed, State::failed, State::failed, State::error})
            .verdict_line(Exit::failed) ==
        "verdict: FAILED, 1 of 4 cases passed, 2 failed, 1 error");
  CHECK(report_of({State::skipped}).verdict_line(Exit::nothing) ==
        "verdict: NOTHING COMPARED, 0 of 1 cases passed, 1 skipped");
  CHECK(report_of({}).verdict_line(Exit::nothing) == "verdict: NOTHING COMPARED");
  CHECK(report_of({State::passed}).verdict_line(Exit::interrupted) ==
        "verdict: INTERRUPTED, 1 of 1 cases passed");
  Report report = report_of({});
  report.fail("no CUDA device");
  CHECK(report.verdict_line(Exit::missing) == "verdict: FAILED: no CUDA device");
  report.fail("another");
  CHECK(report.verdict_line(Exit::failed) == "verdict: FAILED: no CUDA device (and 1 more)");
}

TEST_CASE("the report has the keys that stay") {
  Report report = report_of({State::passed, State::skipped, State::failed});
  report.set_config({{"schema", 1}});
  report.set_environment({"cuda:0", "NVIDIA H200", 90, "2.11.0", "13.0", "580.1", 16});
  report.fail("one thing");
  const nlohmann::json json = report.to_json(Exit::failed);
  CHECK(keys_of(json) == std::set<std::string>{"schema", "command", "tool", "argv", "config",
                                               "environment", "cases", "totals", "verdict",
                                               "exit_code", "failures"});
  CHECK(json["schema"] == 1);
  CHECK(json["command"] == "check-forward");
  CHECK(keys_of(json["tool"]) == std::set<std::string>{"version", "git", "dirty", "build_type"});
  CHECK(json["tool"]["dirty"].is_boolean());
  CHECK(json["argv"] == nlohmann::json::array({"rmsnorm", "check-forward"}));
  CHECK(json["config"]["schema"] == 1);
  CHECK(json["environment"] == nlohmann::json({{"device", "cuda:0"},
                                               {"device_name", "NVIDIA H200"},
                                               {"sm", 90},
                                               {"libtorch", "2.11.0"},
                                               {"cuda_runtime", "13.0"},
                                               {"driver", "580.1"},
                                               {"threads", 16}}));
  REQUIRE(json["cases"].size() == 3);
  CHECK(keys_of(json["cases"][0]) == std::set<std::string>{"name",
                                                           "implementation",
                                                           "rows",
                                                           "cols",
                                                           "dtype",
                                                           "layout",
                                                           "gamma",
                                                           "inputs",
                                                           "state",
                                                           "reason",
                                                           "compared",
                                                           "mismatched",
                                                           "max_abs_error",
                                                           "max_rel_error",
                                                           "row_rel_l2",
                                                           "worst_index",
                                                           "expected",
                                                           "got",
                                                           "used_of_tolerance",
                                                           "repro"});
  CHECK(json["cases"][0]["name"] == "128x257-float32");
  CHECK(json["cases"][0]["layout"] == "contiguous");
  CHECK(json["cases"][1]["state"] == "skipped");
  CHECK(json["totals"] == nlohmann::json({{"passed", 1},
                                          {"skipped", 1},
                                          {"mistrusted", 0},
                                          {"unimplemented", 0},
                                          {"failed", 1},
                                          {"error", 0}}));
  CHECK(json["verdict"] == "failed");
  CHECK(json["exit_code"] == 1);
  CHECK(json["failures"] == nlohmann::json::array({"one thing"}));
}

TEST_CASE("a report without cases has empty lists, not missing ones") {
  const nlohmann::json json = report_of({}).to_json(Exit::nothing);
  CHECK(json["cases"] == nlohmann::json::array());
  CHECK(json["failures"] == nlohmann::json::array());
  CHECK(json["config"] == nlohmann::json::object());
  CHECK(json["totals"]["passed"] == 0);
  CHECK(json["verdict"] == "nothing compared");
  CHECK(json["exit_code"] == 4);
  CHECK(report_of({}).to_json(Exit::interrupted)["verdict"] == "interrupted");
  CHECK(report_of({}).to_json(Exit::interrupted)["exit_code"] == 130);
  CHECK(report_of({}).to_json(Exit::usage)["verdict"] == "failed");
}

TEST_CASE("NaN and infinities are strings wherever they stand in a report") {
  CHECK(rmsnorm::json_number(quiet_nan) == "nan");
  CHECK(rmsnorm::json_number(-quiet_nan) == "nan");
  CHECK(rmsnorm::json_number(inf) == "inf");
  CHECK(rmsnorm::json_number(-inf) == "-inf");
  CHECK(rmsnorm::json_number(0.5) == 0.5);
  Report report("benchmark", {});
  rmsnorm::CaseResult result = result_of(State::failed);
  result.comparison.max_abs_error = quiet_nan;
  result.comparison.got = -inf;
  result.comparison.used_of_tolerance = inf;
  report.add(result);
  report.section("rows") = nlohmann::json::array({{{"median_us", quiet_nan}, {"floor_us", 1.5}}});
  const nlohmann::json json = report.to_json(Exit::failed);
  CHECK(json["cases"][0]["max_abs_error"] == "nan");
  CHECK(json["cases"][0]["got"] == "-inf");
  CHECK(json["cases"][0]["used_of_tolerance"] == "inf");
  CHECK(json["rows"][0]["median_us"] == "nan");
  CHECK(json["rows"][0]["floor_us"] == 1.5);
  CHECK(json.dump().find("null") == std::string::npos);
}

TEST_CASE("a section cannot take the place of a key that stays") {
  Report report("exercise", {});
  report.section("mutants").push_back("one");
  report.section("mutants").push_back("two");
  CHECK(report.to_json(Exit::passed)["mutants"].size() == 2);
  for (const char* key : {"cases", "verdict", "exit_code", "totals"}) {
    CHECK_THROWS_AS(report.section(key), std::logic_error);
  }
}

TEST_CASE("a report is written as COMMAND.json into a folder that need not exist") {
  const auto folder = scratch_folder("write");
  const Report report("check-gamma", {"rmsnorm", "not UTF-8: \xff"});
  const auto file = report.write(folder / "deep" / "er", Exit::nothing);
  CHECK(file == folder / "deep" / "er" / "check-gamma.json");
  const std::string text = rmsnorm::read_file(file);
  CHECK(text.back() == '\n');
  const nlohmann::json json = nlohmann::json::parse(text);
  CHECK(json["command"] == "check-gamma");
  CHECK(json["argv"][1] == "not UTF-8: \xef\xbf\xbd");
  std::filesystem::remove_all(folder);
}

TEST_CASE("a report that cannot be written is an error that names the file") {
  const auto folder = scratch_folder("blocked");
  rmsnorm::write_file_atomically(folder / "file", "old");
  try {
    Report("clean", {}).write(folder / "file", Exit::passed);
    FAIL("written below a file");
  } catch (const std::runtime_error& error) {
    const std::string text = error.what();
    CAPTURE(text);
    CHECK(text.find((folder / "file" / "clean.json").string() + ": ") == 0);
  }
  CHECK(rmsnorm::read_file(folder / "file") == "old");
  std::filesystem::remove_all(folder);
}
