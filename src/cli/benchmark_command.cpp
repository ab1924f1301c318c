#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/benchmark.hpp"
#include "bench/report.hpp"
#include "cli/app.hpp"
#include "cli/console.hpp"
#include "cli/environment.hpp"
#include "cli/interrupt.hpp"
#include "core/files.hpp"

namespace rmsnorm::cli {
namespace {

constexpr std::size_t kReasonsShown = 10;

/// What was measured until now, kept when the run ends early.
class Results {
 public:
  Results(Context& context, std::int64_t total)
      : context_(context), progress_("benchmark", total, context.options.quiet) {}

  void add(const bench::CheckedCase& checked) {
    const ComparisonResult& result = checked.result;
    CaseResult entry{
        checked.problem, checked.implementation, result,
        fmt::format("{} --implementation {} --case {}", context_.command_line("benchmark"),
                    checked.implementation, checked.problem.name())};
    if (checked.sampled && result.state == State::passed) {
      entry.comparison.reason = "y and dx by a sample of the rows, dgamma by all";
    }
    context_.report.add(entry);
  }

  void add(const bench::Row& row) {
    rows_.push_back(row);
    nlohmann::json& section = context_.report.section("rows");
    if (section.is_null()) section = nlohmann::json::array();
    section.push_back(bench::row_json(row));
    progress_.advance(static_cast<std::int64_t>(rows_.size()));
    if (row.state > State::skipped) {
      context_.report.fail(fmt::format("{} {} {} {}: {}", row.implementation, row.problem.name(),
                                       name(row.pass), name(row.protocol), row.reason));
    }
  }

  const std::vector<bench::Row>& rows() const { return rows_; }

 private:
  Context& context_;
  Progress progress_;
  std::vector<bench::Row> rows_;
};

void print_reasons(const std::vector<bench::Row>& rows) {
  std::vector<std::string> reasons;
  for (const bench::Row& row : rows) {
    if (row.state == State::passed) continue;
    const std::string line =
        fmt::format("{}: {}: {}", name(row.state), row.implementation, row.reason);
    if (std::find(reasons.begin(), reasons.end(), line) == reasons.end()) reasons.push_back(line);
  }
  for (std::size_t i = 0; i < std::min(reasons.size(), kReasonsShown); ++i) print_line(reasons[i]);
  if (reasons.size() > kReasonsShown) {
    print_line(fmt::format("... and {} more, all in the report", reasons.size() - kReasonsShown));
  }
}

void publish(const Context& context, const std::vector<bench::Row>& rows) {
  const std::filesystem::path file = std::filesystem::path(context.options.out) / "benchmark.md";
  write_file_atomically(file,
                        bench::markdown(rows, environment_of(context.device), context.config));
  if (context.options.quiet) return;
  print_table(bench::table_of(rows));
  print_line("medians in us, in brackets the ratio to copy; floor: an empty autograd function");
  print_reasons(rows);
  print_line("table: " + file.string());
}

void run_benchmark(Context& context) {
  if (!context.options.implementations.empty()) {
    for (BenchmarkGroup& group : context.config.benchmark.groups) group.implementations.clear();
  }
  const std::vector<bench::Task> tasks = bench::plan(context.config, context.options.case_pattern);
  if (tasks.empty()) {
    print_error(
        fmt::format("nothing to time: no case of {} has the name '{}', or no protocol there "
                    "knows the passes beside it",
                    context.options.config, context.options.case_pattern));
    return;
  }
  context.report.section("rows") = nlohmann::json::array();
  Results results(context, bench::row_count(tasks));
  const std::int32_t device_type = context.device.is_cuda() ? RMSNORM_CUDA : RMSNORM_CPU;
  const bench::Hooks hooks{
      .find = [&](std::string_view name) { return find_subject(name, device_type); },
      .between = stop_if_interrupted,
      .checked = [&](const bench::CheckedCase& checked) { results.add(checked); },
      .timed = [&](const bench::Row& row) { results.add(row); }};
  try {
    bench::run_benchmark(tasks, context.config, context.device, hooks);
  } catch (...) {
    if (!results.rows().empty()) publish(context, results.rows());
    throw;
  }
  publish(context, results.rows());
}

}  // namespace

void add_benchmark_command(Program& program) {
  add_subcommand(
      program, "benchmark",
      "Check each implementation on the config's benchmark shapes, then time it beside a "
      "copy of the same bytes",
      run_benchmark);
}

}  // namespace rmsnorm::cli
