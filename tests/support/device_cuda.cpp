#include "support/device.hpp"

namespace rmsnorm::test {

c10::Device test_device() {
  return c10::Device(c10::kCUDA, 0);
}

}  // namespace rmsnorm::test
