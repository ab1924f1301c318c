// The main of the GPU tests: without the devices they need they are skipped, never passed.
#define CATCH_CONFIG_RUNNER
#include <cstdio>
#include <cstdlib>
#include <string>

#include "operator/device.hpp"
#include "support/catch.hpp"

namespace {

constexpr int kSkipped = 4;  // ctest's SKIP_RETURN_CODE

/// How many devices the selected tests need; ctest says so for those that need more than one.
int needed_devices() {
  const char* text = std::getenv("RMSNORM_TEST_DEVICES");
  return text == nullptr ? 1 : std::atoi(text);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string problem = rmsnorm::cuda_problem(needed_devices() - 1);
  if (!problem.empty()) {
    std::printf("skipped: %s\n", problem.c_str());
    return kSkipped;
  }
  return Catch::Session().run(argc, argv) == 0 ? 0 : 1;
}
