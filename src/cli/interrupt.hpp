#pragma once

#include <stdexcept>

namespace rmsnorm::cli {

/// SIGINT or SIGTERM came and the work stopped at a safe point; exit 130.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// From now on the first SIGINT or SIGTERM only sets a flag; a second one ends the process as
/// usual.
void catch_interrupts();
bool interrupted();
/// Throws Interrupted when the flag is set.
void stop_if_interrupted();

}  // namespace rmsnorm::cli
