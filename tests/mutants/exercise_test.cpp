#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "mutants/program.hpp"
#include "support/catch.hpp"

using rmsnorm::test::contents;
using rmsnorm::test::Ended;
using rmsnorm::test::Folder;
using rmsnorm::test::run_program;

namespace {

const std::string exercise_file = RMSNORM_SOURCE_DIR "/configs/exercise.yaml";
const std::string mutants_file = RMSNORM_SOURCE_DIR "/configs/mutants.yaml";

Ended exercise(const std::string& config, std::vector<std::string> flags, const Folder& folder) {
  flags.insert(flags.begin(), {"exercise", "--config", config, "--device", "cpu"});
  return run_program(flags, folder);
}

nlohmann::json report_in(const Folder& folder) {
  return nlohmann::json::parse(contents(folder.path + "/exercise.json"));
}

std::size_t lines_in(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("exercise shows the fault whatever the hypothesis was, and records whether it held",
          "[exercise]") {
  for (const std::string hypothesis : {"larger", "smaller", "same"}) {
    CAPTURE(hypothesis);
    const Folder folder;
    const Ended ended = exercise(exercise_file, {"--hypothesis", hypothesis}, folder);
    REQUIRE(ended.exit_code == 0);
    CHECK(ended.out.find("1.411458") != std::string::npos);
    CHECK(ended.out.find("0.9999995") != std::string::npos);
    const nlohmann::json report = report_in(folder);
    CHECK(report["verdict"] == "passed");
    CHECK(report["exercise"]["hypothesis"] == hypothesis);
    CHECK(report["exercise"]["observed"] == "larger");
    CHECK(report["exercise"]["held"] == (hypothesis == "larger"));
    CHECK(report["exercise"]["visible"] == true);
  }
}

TEST_CASE("exercise without a terminal and without a hypothesis says what to give", "[exercise]") {
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{}, "--hypothesis"},
      {{"--hypothesis", "bigger"}, "larger, smaller or same"},
      {{"--hypothesis", "larger", "--mutants", "all"}, "either"},
      {{"--mutants", "no_such_fault"}, "denominator_block"},
      {{"--mutants", "tuned/gamma_by_row"}, "tuned/denominator_block"},
      {{"--mutants", ","}, "names of faults"}};
  for (const auto& [flags, said] : wrong) {
    CAPTURE(said);
    const Folder folder;
    const Ended ended = exercise(exercise_file, flags, folder);
    CHECK(ended.exit_code == 2);
    CHECK(lines_in(ended.err) == 1);
    CHECK(ended.err.find(said) != std::string::npos);
    CHECK(report_in(folder)["exit_code"] == 2);
  }
}

TEST_CASE("the kill matrix names check, case and source of each mutant", "[exercise]") {
  const Folder folder;
  const Ended ended =
      exercise(mutants_file, {"--mutants", "gamma_ignored,dgamma_average,no_graph"}, folder);
  INFO(ended.out << ended.err);
  REQUIRE(ended.exit_code == 0);
  const nlohmann::json report = report_in(folder);
  REQUIRE(report["mutants"].size() == 5);
  const char* names[] = {"gamma_ignored", "gamma_ignored", "dgamma_average", "dgamma_average",
                         "no_graph"};
  const char* checks[] = {"check-forward", "check-forward", "check-gamma", "check-gamma",
                          "autograd"};
  const char* broken[] = {"rowwise", "tuned", "rowwise", "tuned", "rms_norm"};
  for (std::size_t i = 0; i < 5; ++i) {
    const nlohmann::json& mutant = report["mutants"][i];
    CAPTURE(mutant.dump());
    CHECK(mutant["name"] == names[i]);
    CHECK(mutant["implementation"] == broken[i]);
    CHECK(mutant["killed"] == true);
    CHECK(mutant["killed_by"] == nlohmann::json::array({checks[i]}));
    CHECK(mutant["case"].is_string());
    CHECK(mutant["source"].is_string());
  }
}

TEST_CASE("the kill matrix takes tuned alone where it is asked to", "[exercise]") {
  const Folder folder;
  const Ended ended = exercise(mutants_file, {"--mutants", "tuned/gamma_ignored"}, folder);
  INFO(ended.out << ended.err);
  REQUIRE(ended.exit_code == 0);
  CHECK(ended.out.find("mutant:tuned/none") != std::string::npos);
  const nlohmann::json report = report_in(folder);
  REQUIRE(report["mutants"].size() == 1);
  CHECK(report["mutants"][0]["name"] == "gamma_ignored");
  CHECK(report["mutants"][0]["implementation"] == "tuned");
}

TEST_CASE("a mutant that no case shows is a survivor and a failure", "[exercise]") {
  const Folder folder;
  const Ended ended =
      exercise(mutants_file, {"--mutants", "denominator_block", "--case", "*x256-float32"}, folder);
  CHECK(ended.exit_code == 1);
  CHECK(ended.out.find("mutant denominator_block survived") != std::string::npos);
  CHECK(report_in(folder)["mutants"][0]["killed"] == false);
  CHECK(report_in(folder)["mutants"][1]["killed"] == false);
}

TEST_CASE("a mutant is an implementation like any other to a check, and fails it", "[exercise]") {
  const Folder folder;
  const std::vector<std::string> check{"check-forward", "--config", mutants_file,
                                       "--device",      "cpu",      "--implementation"};
  const auto with = [&](const std::string& name) {
    std::vector<std::string> arguments = check;
    arguments.push_back(name);
    return run_program(arguments, folder);
  };
  CHECK(with("mutant:denominator_block").exit_code == 1);
  CHECK(with("mutant:no_such_fault").exit_code == 3);
  CHECK(with("mutant:tuned/denominator_block").exit_code == 1);
  const Ended other = with("mutant:tuned/gamma_by_row");
  CHECK(other.exit_code == 3);
  CHECK(other.err.find("tuned/none, tuned/denominator_block") != std::string::npos);
  const Ended autograd = with("mutant:no_graph");
  CHECK(autograd.exit_code == 3);
  CHECK(autograd.err.find("exercise --mutants no_graph") != std::string::npos);
}
