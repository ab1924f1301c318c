#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.hpp"

namespace rmsnorm {

/// How the faulty output's amplitude compares with the right one.
enum class Hypothesis { larger, smaller, same };
std::string_view name(Hypothesis hypothesis);
std::optional<Hypothesis> parse_hypothesis(std::string_view text);

/// One row of ones, gamma and dy ones, through the right kernels and through those that divide by
/// the width of the work block. Everything is computed; nothing is a constant of the source.
struct OnesRow {
  std::int64_t cols = 0, width = 0;  ///< width: of the block, the next power of two
  double sum_of_squares = 0;
  double mean = 0, faulty_mean = 0;                ///< of squares: over cols, over width
  double denominator = 0, faulty_denominator = 0;  ///< sqrt(mean + eps)
  double y = 0, faulty_y = 0;                      ///< what the kernels returned, in float32
  double sum_ux = 0;
  double mean_ux = 0, faulty_mean_ux = 0;
  double dx = 0, faulty_dx = 0;  ///< of the kernels; faulty: after a right forward

  bool shows_fault() const { return y != faulty_y; }
  Hypothesis truth() const;
};
OnesRow compute_ones_row(std::int64_t cols, double eps, const c10::Device& device);

/// Whether a check fails a subject with that many columns.
struct Catch {
  std::string check, case_name;
  bool caught = false;
  std::string reason;
};
/// The three checks over the mutant denominator_block, at a few rows of each column count.
std::vector<Catch> check_block_mutant(const Config& config, const c10::Device& device);

}  // namespace rmsnorm
