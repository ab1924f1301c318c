// The main of every test binary. Not Catch2's own, whose exit code is the number of failed cases:
// four of them would read as ctest's SKIP_RETURN_CODE.
#define CATCH_CONFIG_RUNNER
#include "support/catch.hpp"

int main(int argc, char** argv) {
  return Catch::Session().run(argc, argv) == 0 ? 0 : 1;
}
