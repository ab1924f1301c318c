#include "cli/console.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

namespace rmsnorm::cli {
namespace {

constexpr double kShowAfterSeconds = 1.0;
constexpr double kRedrawSeconds = 0.1;
constexpr std::int64_t kBarWidth = 30;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void print_line(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void print_error(const std::string& message) {
  fmt::print(stderr, "rmsnorm: {}\n", message);
}

void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    print_line(line);
  }
}

std::string short_number(double value) {
  if (std::isnan(value)) return "nan";
  return fmt::format("{:.3g}", value);
}

Progress::Progress(std::string label, std::int64_t total, bool quiet)
    : label_(std::move(label)),
      total_(total),
      enabled_(!quiet && isatty(STDERR_FILENO) == 1),
      started_s_(now_s()) {}

Progress::~Progress() {
  if (shown_) fmt::print(stderr, "\r{:<78}\r", "");
}

void Progress::advance(std::int64_t done) {
  const double now = now_s();
  if (!enabled_ || now - started_s_ < kShowAfterSeconds || now - last_s_ < kRedrawSeconds) return;
  last_s_ = now;
  shown_ = true;
  const std::int64_t filled = total_ > 0 ? kBarWidth * done / total_ : 0;
  fmt::print(stderr, "\r{} [{:#<{}}{:.<{}}] {}/{}", label_, "", filled, "", kBarWidth - filled,
             done, total_);
  std::fflush(stderr);
}

}  // namespace rmsnorm::cli
