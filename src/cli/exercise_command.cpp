#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>

#include "cli/app.hpp"
#include "cli/console.hpp"
#include "cli/mutant_matrix.hpp"
#include "exercise/demonstration.hpp"

namespace rmsnorm::cli {
namespace {

constexpr const char* kQuestion =
    "A row of N equal ones is normalized, but its sum of squares is divided by the width of the "
    "work "
    "block, the next power of two, instead of N. For an N that is not a power of two: is the "
    "output "
    "larger, smaller or the same?";

Hypothesis ask() {
  print_line(kQuestion);
  for (int attempt = 0; attempt < 3; ++attempt) {
    fmt::print("larger, smaller or same> ");
    std::fflush(stdout);
    std::string answer;
    if (!std::getline(std::cin, answer)) break;
    if (const auto hypothesis = parse_hypothesis(answer)) return *hypothesis;
  }
  throw ConfigError("exercise: the answer must be larger, smaller or same; got none of them");
}

Hypothesis state_hypothesis(const std::string& flag) {
  if (!flag.empty()) {
    if (const auto hypothesis = parse_hypothesis(flag)) return *hypothesis;
    throw ConfigError("--hypothesis: must be larger, smaller or same; got " + flag);
  }
  if (isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) return ask();
  throw ConfigError(
      "exercise: a hypothesis must come first, and there is no terminal to ask on; give "
      "--hypothesis larger, smaller or same (or --mutants all for the kill matrix)");
}

std::string seven(double value) {
  return fmt::format("{:.7f}", value);
}

void print_numbers(const std::vector<OnesRow>& rows) {
  std::vector<std::vector<std::string>> table{{"a row of ones", "divided by N", "by the block"}};
  const auto line = [&](std::string what, double right, double faulty) {
    table.push_back({std::move(what), seven(right), seven(faulty)});
  };
  for (const OnesRow& row : rows) {
    table.push_back({fmt::format("N = {}, block = {}", row.cols, row.width),
                     std::to_string(row.cols), std::to_string(row.width)});
    line("  sum of squares", row.sum_of_squares, row.sum_of_squares);
    line("  mean of squares", row.mean, row.faulty_mean);
    line("  sqrt(mean + eps)", row.denominator, row.faulty_denominator);
    line("  y, from the kernels", row.y, row.faulty_y);
    line("  mean(u*x), dy = 1", row.mean_ux, row.faulty_mean_ux);
    line("  dx, after a right forward", row.dx, row.faulty_dx);
  }
  print_table(table);
}

nlohmann::json to_json(const OnesRow& row) {
  return {{"cols", row.cols},
          {"block", row.width},
          {"sum_of_squares", row.sum_of_squares},
          {"mean", row.mean},
          {"faulty_mean", row.faulty_mean},
          {"denominator", row.denominator},
          {"faulty_denominator", row.faulty_denominator},
          {"y", row.y},
          {"faulty_y", row.faulty_y},
          {"mean_ux", row.mean_ux},
          {"faulty_mean_ux", row.faulty_mean_ux},
          {"dx", row.dx},
          {"faulty_dx", row.faulty_dx},
          {"shows_fault", row.shows_fault()}};
}

void explain(const OnesRow& shown, const OnesRow* hidden, Hypothesis hypothesis) {
  print_line(fmt::format("hypothesis: {}; observed: {}, {} for {}: it {}", name(hypothesis),
                         name(shown.truth()), seven(shown.faulty_y), seven(shown.y),
                         hypothesis == shown.truth() ? "held" : "did not hold"));
  print_line(
      fmt::format("why: the {} padded slots add nothing to the sum, but the faulty mean counts "
                  "them: {:.0f}/{} for {:.0f}/{}. The denominator shrinks, so the output grows.",
                  shown.width - shown.cols, shown.sum_of_squares, shown.width, shown.sum_of_squares,
                  shown.cols));
  if (hidden != nullptr) {
    print_line(
        fmt::format("{} columns hide it: there N and the block's width are the same number, "
                    "and a test at that size alone lets it through.",
                    hidden->cols));
  }
  print_line(
      "backward: mean(u*x) comes from the derivative of the mean over the N columns of the row, so "
      "it has the same N. Mending the forward alone leaves dx wrong, as the last line above "
      "shows.");
}

void run_demonstration(Context& context, const std::string& flag) {
  const Hypothesis hypothesis = state_hypothesis(flag);
  const bool quiet = context.options.quiet;
  std::vector<OnesRow> rows;
  const OnesRow *shown = nullptr, *hidden = nullptr;
  for (const std::int64_t cols : context.config.exercise.cols)
    rows.push_back(compute_ones_row(cols, context.config.epsilon, context.device));
  for (const OnesRow& row : rows) (row.shows_fault() ? shown : hidden) = &row;
  const std::vector<Catch> catches = check_block_mutant(context.config, context.device);

  nlohmann::json section = {{"fault", "denominator_block"}, {"hypothesis", name(hypothesis)}};
  section["ones"] = nlohmann::json::array();
  for (const OnesRow& row : rows) section["ones"].push_back(to_json(row));
  section["checks"] = nlohmann::json::array();
  std::vector<std::vector<std::string>> table{{"check", "case", "catches it"}};
  bool caught = false;
  for (const Catch& item : catches) {
    section["checks"].push_back({{"check", item.check},
                                 {"case", item.case_name},
                                 {"caught", item.caught},
                                 {"reason", item.reason}});
    table.push_back({item.check, item.case_name, item.caught ? "yes" : "no"});
    caught = caught || item.caught;
  }
  if (!quiet) {
    print_numbers(rows);
    print_table(table);
  }
  section["visible"] = shown != nullptr && caught;
  if (shown == nullptr) {
    context.report.fail(
        "exercise.cols has only powers of two, at which the fault cannot show; add 257");
  } else {
    section["observed"] = name(shown->truth());
    section["held"] = hypothesis == shown->truth();
    if (!caught) context.report.fail("no check caught the fault");
    if (!quiet) explain(*shown, hidden, hypothesis);
  }
  context.report.section("exercise") = section;
  context.report.passes_without_cases();
}

}  // namespace

void add_exercise_command(Program& program) {
  struct Flags {
    std::string hypothesis, mutants;
  };
  const auto flags = std::make_shared<Flags>();
  const Subcommand sub = add_subcommand(
      program, "exercise",
      "The tutorial's exercise, a wrong denominator made visible; with --mutants, the proof that "
      "the checks find faults",
      [flags](Context& context) {
        if (!flags->mutants.empty() && !flags->hypothesis.empty()) {
          throw ConfigError("exercise: give either --hypothesis or --mutants; got both");
        }
        if (flags->mutants.empty()) return run_demonstration(context, flags->hypothesis);
        run_mutant_matrix(context, flags->mutants);
      });
  sub.app->add_option("--hypothesis", flags->hypothesis,
                      "what the fault does to the output: larger, smaller or same (default: asks)");
  sub.app->add_option(
      "--mutants", flags->mutants,
      "all, or names of faults separated by commas (tuned/NAME: in tuned alone): which check finds "
      "which");
}

}  // namespace rmsnorm::cli
