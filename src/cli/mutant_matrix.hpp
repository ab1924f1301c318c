#pragma once

#include <string>

#include "cli/app.hpp"

namespace rmsnorm::cli {

/// `exercise --mutants`: the mutants named in `list` (all, or NAME[,NAME] as find_mutants
/// takes them) under every check over
/// the config's cases, and the config's implementations, which are right, under the same. Fails the
/// report for a mutant that its check does not find, a right implementation that fails, and, with
/// all, a check that no mutant needs.
void run_mutant_matrix(Context& context, const std::string& list);

}  // namespace rmsnorm::cli
