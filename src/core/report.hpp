#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/cases.hpp"
#include "core/comparison.hpp"

namespace rmsnorm {

/// The exit codes of the program; there are no others.
enum class Exit : int {
  passed = 0,
  failed = 1,
  usage = 2,
  missing = 3,
  nothing = 4,
  interrupted = 130
};

struct CaseResult {
  Case problem;
  std::string implementation;
  ComparisonResult comparison;  ///< state and reason are the case's
  std::string repro;            ///< a command line that reruns exactly this case
};

struct Environment {
  std::string device;       ///< cpu or cuda:I, what ran
  std::string device_name;  ///< CPU model or card
  int sm = 0;               ///< compute capability, 90 for 9.0; 0 on the CPU
  std::string libtorch;
  std::string cuda_runtime, driver;  ///< empty where there is none
  int threads = 0;
};

/// What was built, for `tool` and --version.
struct ToolInfo {
  std::string version, git, build_type;
  bool dirty = false;
};
ToolInfo tool_info();

/// The report of one command: collects, counts, decides the verdict and writes DIR/COMMAND.json.
class Report {
 public:
  Report(std::string command, std::vector<std::string> argv);

  void set_config(nlohmann::json config);
  void set_environment(const Environment& environment);
  void add(const CaseResult& result);

  /// A section of the command's own (training, mutants, rows, ...).
  nlohmann::json& section(const std::string& key);

  /// Records a failure that is not a case's: the verdict is at best `failed` from then on.
  void fail(const std::string& reason);

  /// A command without cases (train, acquire, clean, ...) passes when it did not fail; without this
  /// call, no cases compared is Exit::nothing.
  void passes_without_cases();

  std::int64_t count(State state) const;

  /// failed if any case is mistrusted or worse or a failure was recorded; nothing if no case passed
  /// (there are none, or all were skipped) and the command needs cases; else passed.
  Exit verdict() const;

  /// `verdict: PASSED, 144 of 144 cases passed` and the like; the last line that a command prints.
  std::string verdict_line(Exit exit_code) const;

  nlohmann::json to_json(Exit exit_code) const;

  /// Writes DIR/COMMAND.json (DIR is made if needed): to a temporary file in DIR, flushed, then
  /// renamed, so that an earlier report stays whole if this fails. Throws std::runtime_error naming
  /// file and reason.
  std::filesystem::path write(const std::filesystem::path& dir, Exit exit_code) const;

 private:
  std::string command_;
  std::vector<std::string> argv_;
  nlohmann::json config_ = nlohmann::json::object();
  nlohmann::json environment_ = nlohmann::json::object();
  nlohmann::json sections_ = nlohmann::json::object();
  std::vector<CaseResult> cases_;
  std::vector<std::string> failures_;
  bool passes_without_cases_ = false;
};

/// A number as JSON; NaN and infinities as the strings "nan", "inf", "-inf".
nlohmann::json json_number(double value);

}  // namespace rmsnorm
