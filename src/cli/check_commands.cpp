#include <fmt/format.h>

#include <map>

#include "check/check.hpp"
#include "cli/app.hpp"
#include "cli/console.hpp"
#include "cli/interrupt.hpp"

namespace rmsnorm::cli {
namespace {

constexpr std::size_t kFailuresShown = 10;

struct Summary {
  std::map<State, std::int64_t> states;
  double max_abs_error = 0, used_of_tolerance = 0;
  std::string worst_case = "-";

  void add(const CaseResult& result) {
    ++states[result.comparison.state];
    max_abs_error = std::max(max_abs_error, result.comparison.max_abs_error);
    if (!(result.comparison.used_of_tolerance <= used_of_tolerance)) {
      used_of_tolerance = result.comparison.used_of_tolerance;
      worst_case = result.problem.name();
    }
  }
  std::int64_t not_passed() const {
    std::int64_t count = 0;
    for (const auto& [state, cases] : states) count += state > State::skipped ? cases : 0;
    return count;
  }
};

void run_check(Context& context, Operation operation) {
  const std::string command(command_name(operation));
  const std::vector<Case> cases =
      select_cases(expand_cases(context.config), context.options.case_pattern);
  if (cases.empty()) {
    print_error(fmt::format("--case {}: no case of {} has such a name",
                            context.options.case_pattern, context.options.config));
    return;
  }
  std::vector<std::vector<std::string>> table{{"implementation", "cases", "passed", "skipped",
                                               "not passed", "max abs error", "used of tolerance",
                                               "worst case"}};
  std::vector<CaseResult> failures;
  std::vector<std::string> advice;
  const auto total =
      static_cast<std::int64_t>(cases.size() * context.config.implementations.size());
  Progress progress(command, total, context.options.quiet);
  std::int64_t done = 0;
  for (const std::string& name : context.config.implementations) {
    InProcessRunner runner(
        find_subject(name, context.device.is_cuda() ? RMSNORM_CUDA : RMSNORM_CPU));
    Summary summary;
    std::vector<CaseState> states;
    for (const Case& problem : cases) {
      stop_if_interrupted();
      CaseResult result{problem, name,
                        check_case(operation, problem, runner, context.config, context.device),
                        fmt::format("{} --implementation {} --case {}",
                                    context.command_line(command), name, problem.name())};
      context.report.add(result);
      summary.add(result);
      states.push_back({problem, result.comparison.state});
      if (result.comparison.state > State::skipped) failures.push_back(std::move(result));
      progress.advance(++done);
    }
    table.push_back({name, std::to_string(cases.size()),
                     std::to_string(summary.states[State::passed]),
                     std::to_string(summary.states[State::skipped]),
                     std::to_string(summary.not_passed()), short_number(summary.max_abs_error),
                     fmt::format("{:.1f} %", 100 * summary.used_of_tolerance), summary.worst_case});
    for (const std::string& hint : hints(operation, states)) advice.push_back(name + ": " + hint);
  }
  if (!context.options.quiet) print_table(table);
  for (std::size_t i = 0; i < std::min(failures.size(), kFailuresShown); ++i) {
    print_line(fmt::format("{}: {} {}: {}\n  repro: {}", name(failures[i].comparison.state),
                           failures[i].implementation, failures[i].problem.name(),
                           failures[i].comparison.reason, failures[i].repro));
  }
  if (failures.size() > kFailuresShown) {
    print_line(fmt::format("... and {} more, all in the report", failures.size() - kFailuresShown));
  }
  for (const std::string& hint : advice) print_line("hint: " + hint);
  if (!advice.empty()) context.report.section("hints") = advice;
}

}  // namespace

void add_check_commands(Program& program) {
  const std::pair<Operation, const char*> commands[] = {
      {Operation::forward, "Compare y with the float64 oracle, case by case"},
      {Operation::backward, "Compare dx, the gradient of x"},
      {Operation::gamma, "Compare dgamma, the gradient of the weight"}};
  for (const auto& [operation, description] : commands) {
    add_subcommand(program, std::string(command_name(operation)), description,
                   [operation = operation](Context& context) { run_check(context, operation); });
  }
}

}  // namespace rmsnorm::cli
