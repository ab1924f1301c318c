#include "core/cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace rmsnorm {
namespace {

std::vector<std::pair<std::int64_t, std::int64_t>> shapes_of(const CaseGrid& grid) {
  if (!grid.shapes.empty()) return grid.shapes;
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes;
  shapes.reserve(grid.rows.size() * grid.cols.size());
  for (const std::int64_t rows : grid.rows) {
    for (const std::int64_t cols : grid.cols) shapes.emplace_back(rows, cols);
  }
  return shapes;
}

/// Whether `text` matches `pattern`, in which * stands for any text. Linear in practice: a mismatch
/// goes back only to the last *.
bool matches(std::string_view text, std::string_view pattern) {
  std::size_t t = 0, p = 0;
  std::size_t star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace

std::string Case::name() const {
  std::string text = fmt::format("{}x{}-{}", rows, cols, rmsnorm::name(dtype));
  if (layout != Layout::contiguous) text += fmt::format("-{}", rmsnorm::name(layout));
  if (gamma != GammaKind::same) text += fmt::format("-gamma-{}", rmsnorm::name(gamma));
  if (inputs != InputKind::normal) text += fmt::format("-{}", rmsnorm::name(inputs));
  return text;
}

std::vector<Case> expand_cases(const Config& config) {
  std::vector<Case> cases;
  std::unordered_set<std::string> names;
  const auto add = [&](const Case& problem) {
    const bool same_as_plain =
        problem.gamma == GammaKind::float32 && size_bytes(problem.dtype) != 2;
    if (!same_as_plain && names.insert(problem.name()).second) cases.push_back(problem);
  };
  for (const CaseGrid& grid : config.cases) {
    const auto shapes = shapes_of(grid);
    for (const Dtype dtype : grid.dtypes) {
      for (const auto& [rows, cols] : shapes) {
        for (const Layout layout : grid.layouts) {
          for (const GammaKind gamma : grid.gammas) {
            for (const InputKind inputs : grid.inputs) {
              add({rows, cols, dtype, layout, gamma, inputs});
            }
          }
        }
      }
    }
  }
  return cases;
}

std::vector<Case> select_cases(const std::vector<Case>& cases, std::string_view pattern) {
  if (pattern.empty()) return cases;
  std::vector<Case> selected;
  std::copy_if(cases.begin(), cases.end(), std::back_inserter(selected),
               [&](const Case& problem) { return matches(problem.name(), pattern); });
  return selected;
}

std::uint64_t case_seed(std::uint64_t seed, std::string_view case_name) {
  // FNV-1a over the eight bytes of the seed, least significant first, and the name. FNV hardly
  // mixes its last byte upwards, so the finalizer of splitmix64 follows. Fixed for good: reports
  // name a case by seed and name.
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&](std::uint64_t byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (int shift = 0; shift < 64; shift += 8) mix((seed >> shift) & 0xff);
  for (const char c : case_name) mix(static_cast<unsigned char>(c));
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  return hash ^ (hash >> 31);
}

}  // namespace rmsnorm
