#pragma once

#include <string>
#include <vector>

#include "check/check.hpp"

namespace rmsnorm::test {

/// A table with one planted fault, for float32 on the CPU, and the state that each check must give
/// it on a case of several rows and a number of columns that is not a power of two.
struct Planted {
  std::string name;
  rmsnorm_implementation table;
  State forward, backward, gamma;
};

std::vector<Planted> planted_faults();

/// The tolerances of configs/minimum.yaml, and ones for the dtypes that it leaves out.
Config check_config();

ComparisonResult check(const rmsnorm_implementation& table, Operation operation,
                       const Case& problem);

}  // namespace rmsnorm::test
