#include "core/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "core/files.hpp"
#include "core/git_version.hpp"

#if !defined(RMSNORM_VERSION) || !defined(RMSNORM_BUILD_TYPE)
#error "compile this file with RMSNORM_VERSION and RMSNORM_BUILD_TYPE defined as string literals"
#endif

namespace rmsnorm {
namespace {

constexpr int report_schema = 1;

constexpr std::array all_states{State::passed,        State::skipped, State::mistrusted,
                                State::unimplemented, State::failed,  State::error};

constexpr std::array<std::string_view, 9> fixed_keys{
    "schema", "command", "tool", "argv", "config", "environment", "cases", "totals", "failures"};

/// JSON has no NaN: wherever one slipped into a section, it becomes the same string as in the
/// cases.
nlohmann::json without_nonfinite(nlohmann::json value) {
  if (value.is_number_float()) return json_number(value.get<double>());
  if (value.is_structured()) {
    for (auto& item : value) item = without_nonfinite(std::move(item));
  }
  return value;
}

nlohmann::json case_json(const CaseResult& result) {
  const Case& problem = result.problem;
  const ComparisonResult& comparison = result.comparison;
  return {
      {"name", problem.name()},
      {"implementation", result.implementation},
      {"rows", problem.rows},
      {"cols", problem.cols},
      {"dtype", name(problem.dtype)},
      {"layout", name(problem.layout)},
      {"gamma", name(problem.gamma)},
      {"inputs", name(problem.inputs)},
      {"state", name(comparison.state)},
      {"reason", comparison.reason},
      {"compared", comparison.compared},
      {"mismatched", comparison.mismatched},
      {"max_abs_error", json_number(comparison.max_abs_error)},
      {"max_rel_error", json_number(comparison.max_rel_error)},
      {"row_rel_l2", json_number(comparison.row_rel_l2)},
      {"worst_index", comparison.worst_index},
      {"expected", json_number(comparison.expected)},
      {"got", json_number(comparison.got)},
      {"used_of_tolerance", json_number(comparison.used_of_tolerance)},
      {"repro", result.repro},
  };
}

std::string_view verdict_word(Exit exit_code) {
  switch (exit_code) {
    case Exit::passed:
      return "passed";
    case Exit::nothing:
      return "nothing compared";
    case Exit::interrupted:
      return "interrupted";
    case Exit::failed:
    case Exit::usage:
    case Exit::missing:
      break;
  }
  return "failed";
}

}  // namespace

ToolInfo tool_info() {
  return {RMSNORM_VERSION, git_commit, RMSNORM_BUILD_TYPE, git_dirty};
}

Report::Report(std::string command, std::vector<std::string> argv)
    : command_(std::move(command)), argv_(std::move(argv)) {}

void Report::set_config(nlohmann::json config) {
  config_ = std::move(config);
}

void Report::set_environment(const Environment& environment) {
  environment_ = {
      {"device", environment.device},
      {"device_name", environment.device_name},
      {"sm", environment.sm},
      {"libtorch", environment.libtorch},
      {"cuda_runtime", environment.cuda_runtime},
      {"driver", environment.driver},
      {"threads", environment.threads},
  };
}

void Report::add(const CaseResult& result) {
  cases_.push_back(result);
}

nlohmann::json& Report::section(const std::string& key) {
  const bool taken = std::find(fixed_keys.begin(), fixed_keys.end(), key) != fixed_keys.end();
  if (taken || key == "verdict" || key == "exit_code") {
    throw std::logic_error(fmt::format("report: the key {} is not free for a section", key));
  }
  return sections_[key];
}

void Report::fail(const std::string& reason) {
  failures_.push_back(reason);
}

void Report::passes_without_cases() {
  passes_without_cases_ = true;
}

std::int64_t Report::count(State state) const {
  return std::count_if(cases_.begin(), cases_.end(), [state](const CaseResult& result) {
    return result.comparison.state == state;
  });
}

Exit Report::verdict() const {
  const std::int64_t passed = count(State::passed);
  const std::int64_t skipped = count(State::skipped);
  const bool broken = passed + skipped < static_cast<std::int64_t>(cases_.size());
  if (broken || !failures_.empty()) return Exit::failed;
  return passed > 0 || passes_without_cases_ ? Exit::passed : Exit::nothing;
}

std::string Report::verdict_line(Exit exit_code) const {
  std::string line = fmt::format("verdict: {}", verdict_word(exit_code));
  std::transform(line.begin() + 9, line.end(), line.begin() + 9, [](char c) {
    return static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  });
  if (!cases_.empty()) {
    line += fmt::format(", {} of {} cases passed", count(State::passed), cases_.size());
    for (const State state : all_states) {
      const std::int64_t cases = count(state);
      if (state != State::passed && cases > 0) line += fmt::format(", {} {}", cases, name(state));
    }
  }
  if (!failures_.empty()) line += fmt::format(": {}", failures_.front());
  if (failures_.size() > 1) line += fmt::format(" (and {} more)", failures_.size() - 1);
  return line;
}

nlohmann::json Report::to_json(Exit exit_code) const {
  const ToolInfo tool = tool_info();
  nlohmann::json json = without_nonfinite(sections_);
  json["schema"] = report_schema;
  json["command"] = command_;
  json["tool"] = {{"version", tool.version},
                  {"git", tool.git},
                  {"dirty", tool.dirty},
                  {"build_type", tool.build_type}};
  json["argv"] = argv_;
  json["config"] = without_nonfinite(config_);
  json["environment"] = environment_;
  json["cases"] = nlohmann::json::array();
  for (const CaseResult& result : cases_) json["cases"].push_back(case_json(result));
  json["totals"] = nlohmann::json::object();
  for (const State state : all_states) json["totals"][std::string(name(state))] = count(state);
  json["verdict"] = verdict_word(exit_code);
  json["exit_code"] = static_cast<int>(exit_code);
  json["failures"] = failures_;
  return json;
}

std::filesystem::path Report::write(const std::filesystem::path& dir, Exit exit_code) const {
  const std::filesystem::path file = dir / (command_ + ".json");
  // An argument or a path need not be UTF-8; a replacement character is better than no report.
  const std::string text =
      to_json(exit_code).dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
  write_file_atomically(file, text + "\n");
  return file;
}

nlohmann::json json_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

}  // namespace rmsnorm
