#pragma once

#include "bench/calls.hpp"
#include "core/comparison.hpp"
#include "core/config.hpp"

namespace rmsnorm::bench {

/// Judges what a timed call left against the oracle, by the bounds of the checks: y and dx row by
/// row (above 2^24 elements the first, middle and last rows), dgamma over all rows. The worst of
/// the results; `mistrusted` when there is none.
ComparisonResult verify(const Outputs& outputs, const Case& problem, const CaseInputs& inputs,
                        const Config& config);

/// The same for the column `copy`: y must have x's bits, dx those of x exclusive or dy. Empty when
/// it has, else what is wrong.
std::string copy_mistake(const Outputs& outputs, const CaseInputs& inputs);

}  // namespace rmsnorm::bench
