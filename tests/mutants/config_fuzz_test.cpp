#include <glob.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/cases.hpp"
#include "core/config.hpp"
#include "mutants/mutation.hpp"
#include "mutants/program.hpp"
#include "support/catch.hpp"

// More of it: RMSNORM_FUZZ_RUNS=20000 RMSNORM_FUZZ_SEED=7 rmsnorm_mutant_tests '[fuzz]'

using namespace rmsnorm;
using test::contents;
using test::Generator;

namespace {

constexpr std::uint64_t kDefaultRuns = 1500, kProgramRuns = 40;
constexpr std::size_t kLongestMessage = 1000;
constexpr double kLongestParse_s = 5;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// By glob(3): libtorch exports the std::filesystem of an older compiler, whose iterators crash.
std::vector<std::string> shipped_configs() {
  glob_t found{};
  REQUIRE(glob(RMSNORM_SOURCE_DIR "/configs/*.yaml", 0, nullptr, &found) == 0);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < found.gl_pathc; ++i) texts.push_back(contents(found.gl_pathv[i]));
  globfree(&found);
  return texts;
}

/// The text of run `run`, the same whatever ran before it.
std::string mutated_config(const std::vector<std::string>& configs, std::uint64_t seed,
                           std::uint64_t run) {
  Generator random(seed * 1'000'003 + run);
  return test::mutate(configs[run % configs.size()], configs, random);
}

bool is_one_clear_line(const std::string& message) {
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) return false;
  }
  return !message.empty() && message.size() <= kLongestMessage;
}

}  // namespace

TEST_CASE("a config broken in any way is taken or refused in one clear line", "[fuzz]") {
  const std::uint64_t runs = number_from("RMSNORM_FUZZ_RUNS", kDefaultRuns);
  const std::uint64_t seed = number_from("RMSNORM_FUZZ_SEED", 20240601);
  std::cout << "fuzz: seed " << seed << ", " << runs << " runs" << std::endl;
  const std::vector<std::string> configs = shipped_configs();
  REQUIRE_FALSE(configs.empty());
  std::uint64_t taken = 0;
  for (std::uint64_t run = 0; run < runs; ++run) {
    const std::string text = mutated_config(configs, seed, run);
    INFO("seed " << seed << ", run " << run << ", " << text.size() << " bytes:\n"
                 << text.substr(0, 3000));
    const auto begin = std::chrono::steady_clock::now();
    std::string message;
    try {
      const Config config = parse_config(text, "fuzz.yaml");
      ++taken;
      REQUIRE_FALSE(expand_cases(config).empty());
      REQUIRE_NOTHROW(to_json(config).dump());
    } catch (const ConfigError& error) {
      message = error.what();
      CAPTURE(message);
      REQUIRE(is_one_clear_line(message));
      REQUIRE(message.rfind("fuzz.yaml:", 0) == 0);
    }
    const std::chrono::duration<double> took_s = std::chrono::steady_clock::now() - begin;
    REQUIRE(took_s.count() < kLongestParse_s);
  }
  std::cout << "fuzz: " << taken << " taken, " << runs - taken << " refused" << std::endl;
  // All taken or all refused would mean that the mutations do not reach what they should.
  if (runs >= 1000) CHECK((taken > runs / 100 && taken < runs / 2));
}

TEST_CASE("the program ends a broken config with its exit code and one line", "[program]") {
  const std::uint64_t seed = number_from("RMSNORM_FUZZ_SEED", 20240601);
  std::cout << "fuzz: seed " << seed << ", " << kProgramRuns << " runs of the program" << std::endl;
  const std::vector<std::string> configs = shipped_configs();
  const test::Folder folder;
  const std::string& dir = folder.path;
  const std::string file = dir + "/config.yaml";
  for (std::uint64_t run = 0; run < kProgramRuns; ++run) {
    const std::string text = mutated_config(configs, seed + 1, run);
    std::ofstream(file, std::ios::binary) << text;
    INFO("seed " << seed + 1 << ", run " << run << ":\n" << text.substr(0, 3000));
    // A config that is taken meets a pattern that fits none of its cases.
    const test::Ended ended = test::run_program(
        {"check-forward", "--config", file, "--device", "cpu", "--case", "no such case", "--quiet"},
        folder);
    INFO("stderr: " << ended.err);
    CAPTURE(ended.exit_code);
    REQUIRE((ended.exit_code >= 1 && ended.exit_code <= 4));
    REQUIRE(ended.err.rfind("rmsnorm: ", 0) == 0);
    REQUIRE(ended.err.back() == '\n');
    REQUIRE(is_one_clear_line(ended.err.substr(0, ended.err.size() - 1)));
  }
}
