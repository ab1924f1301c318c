#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rmsnorm::cli {

/// One line on stdout.
void print_line(const std::string& line);
/// `rmsnorm: MESSAGE` on stderr.
void print_error(const std::string& message);

/// Rows of cells in columns, the first row a heading; numbers are the caller's to format.
void print_table(const std::vector<std::vector<std::string>>& rows);

/// `1.2e-07`, or the word for NaN and infinities.
std::string short_number(double value);

/// A bar on stderr while something long runs: only on a terminal, only after a second, gone at the
/// end.
class Progress {
 public:
  Progress(std::string label, std::int64_t total, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void advance(std::int64_t done);

 private:
  std::string label_;
  std::int64_t total_;
  bool enabled_, shown_ = false;
  double started_s_, last_s_ = 0;
};

}  // namespace rmsnorm::cli
