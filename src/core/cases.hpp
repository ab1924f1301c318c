#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.hpp"

namespace rmsnorm {

/// One problem that is given to every implementation.
struct Case {
  std::int64_t rows = 0, cols = 0;
  Dtype dtype = Dtype::float32;
  Layout layout = Layout::contiguous;
  GammaKind gamma = GammaKind::same;
  InputKind inputs = InputKind::normal;

  /// ROWSxCOLS-DTYPE, then -LAYOUT, -gamma-KIND and -INPUTS where they differ from the defaults:
  /// 128x257-float32, 3x64-bfloat16-heads-gamma-float32-scaled.
  std::string name() const;
};

/// Every case of the config in order: grids, then dtype, rows, cols, layout, gamma, inputs. gamma
/// float32 beside a dtype that is not 16-bit is left out (it is `same` there). Repeated names
/// appear once.
std::vector<Case> expand_cases(const Config& config);

/// The cases whose name matches `pattern`, in which * stands for any text; all when it is empty.
std::vector<Case> select_cases(const std::vector<Case>& cases, std::string_view pattern);

/// The seed of a case's inputs: a hash of the run's seed and the case's name, so that a case alone
/// is the same as in the whole run.
std::uint64_t case_seed(std::uint64_t seed, std::string_view case_name);

}  // namespace rmsnorm
