#include "cli/mutant_matrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "cli/console.hpp"
#include "cli/interrupt.hpp"
#include "exercise/kill_matrix.hpp"

namespace rmsnorm::cli {
namespace {

constexpr std::size_t kReasonCharacters = 300;

std::vector<Mutant> named_mutants(const std::string& list) {
  if (list == "all") return all_mutants();
  std::vector<Mutant> mutants;
  std::stringstream names(list);
  for (std::string name; std::getline(names, name, ',');) {
    const std::vector<Mutant> found = find_mutants(name);
    if (found.empty()) {
      std::string known;
      for (const Mutant& mutant : all_mutants()) known += fmt::format(", {}", mutant.name());
      throw ConfigError(fmt::format(
          "--mutants: must be all or names of faults; got {}; known are{}", name, known.substr(1)));
    }
    mutants.insert(mutants.end(), found.begin(), found.end());
  }
  if (mutants.empty()) throw ConfigError("--mutants: must be all or names of faults; got none");
  return mutants;
}

nlohmann::json to_json(const Kill& kill) {
  return {{"case", kill.case_name}, {"reason", kill.reason.substr(0, kReasonCharacters)}};
}

nlohmann::json to_json(const MutantResult& result) {
  nlohmann::json killed_by = nlohmann::json::array(), checks = nlohmann::json::object();
  for (const Kill& kill : result.kills) {
    killed_by.push_back(kill.check);
    checks[kill.check] = to_json(kill);
  }
  const Kill* smallest = result.smallest();
  const kernels::FaultInfo& info = *result.mutant.info;
  return {{"name", info.name},
          {"implementation", result.mutant.implementation()},
          {"family", info.family},
          {"what", info.what},
          {"source", info.source},
          {"expected", name(info.check)},
          {"killed", result.killed()},
          {"killed_by", killed_by},
          {"case", smallest == nullptr ? nlohmann::json() : nlohmann::json(smallest->case_name)},
          {"checks", checks},
          {"error", result.error}};
}

void report_controls(Context& context, const std::vector<ControlResult>& controls) {
  nlohmann::json section = nlohmann::json::array();
  for (const ControlResult& control : controls) {
    nlohmann::json alarms = nlohmann::json::array();
    for (const Kill& alarm : control.false_alarms) {
      nlohmann::json item = to_json(alarm);
      item["check"] = alarm.check;
      alarms.push_back(item);
      context.report.fail(fmt::format("{} is right, but {} {} fails it: {}", control.implementation,
                                      alarm.check, alarm.case_name, alarm.reason));
    }
    section.push_back({{"implementation", control.implementation},
                       {"judged", control.judged},
                       {"false_alarms", alarms}});
    print_line(fmt::format("right: {}, {} judged, {} false alarms", control.implementation,
                           control.judged, control.false_alarms.size()));
  }
  context.report.section("controls") = section;
}

/// For each check the mutants that no other finds.
void report_needs(Context& context, const std::vector<MutantResult>& results, bool all) {
  nlohmann::json section = nlohmann::json::object();
  for (const std::string& check : check_names()) {
    nlohmann::json alone = nlohmann::json::array();
    for (const MutantResult& result : results) {
      if (result.kills.size() == 1 && result.killed_by(check))
        alone.push_back(result.mutant.name());
    }
    if (!context.options.quiet)
      print_line(fmt::format("only {} finds {} of them", check, alone.size()));
    if (all && alone.empty()) context.report.fail(fmt::format("no mutant needs {}", check));
    section[check] = alone;
  }
  context.report.section("only_found_by") = section;
}

}  // namespace

void run_mutant_matrix(Context& context, const std::string& list) {
  const std::vector<Mutant> mutants = named_mutants(list);
  const std::vector<Case> cases =
      select_cases(cases_by_size(context.config), context.options.case_pattern);
  if (cases.empty()) {
    print_error(fmt::format("--case {}: no case of {} has such a name",
                            context.options.case_pattern, context.options.config));
    return;
  }
  Progress progress(
      "exercise", static_cast<std::int64_t>(mutants.size() + context.config.implementations.size()),
      context.options.quiet);
  std::int64_t done = 0;
  const auto tick = [] { stop_if_interrupted(); };

  std::vector<ControlResult> controls{
      try_operator_control(context.config, context.device),
      try_identity_control(kernels::Original::rowwise, cases, context.device),
      try_identity_control(kernels::Original::tuned, cases, context.device)};
  for (const std::string& name : context.config.implementations) {
    controls.push_back(try_control(name, cases, context.config, context.device, tick));
    progress.advance(++done);
  }
  std::vector<MutantResult> results;
  for (const Mutant& mutant : mutants) {
    results.push_back(try_mutant(mutant, cases, context.config, context.device, tick));
    progress.advance(++done);
  }

  std::vector<std::vector<std::string>> table{{"mutant", "implementation"}};
  table[0].insert(table[0].end(), check_names().begin(), check_names().end());
  nlohmann::json section = nlohmann::json::array();
  std::size_t killed = 0;
  for (const MutantResult& result : results) {
    std::vector<std::string> row{result.mutant.info->name, result.mutant.implementation()};
    for (const std::string& check : check_names()) {
      const auto kill = std::find_if(result.kills.begin(), result.kills.end(),
                                     [&](const Kill& item) { return item.check == check; });
      row.push_back(kill == result.kills.end() ? "-" : kill->case_name);
    }
    table.push_back(std::move(row));
    section.push_back(to_json(result));
    killed += result.killed();
    if (const std::string complaint = result.complaint(); !complaint.empty())
      context.report.fail(complaint);
  }
  if (!context.options.quiet) print_table(table);
  report_controls(context, controls);
  report_needs(context, results, list == "all" && context.options.case_pattern.empty());
  print_line(fmt::format("{} of {} mutants killed", killed, results.size()));
  context.report.section("mutants") = section;
  context.report.passes_without_cases();
}

}  // namespace rmsnorm::cli
