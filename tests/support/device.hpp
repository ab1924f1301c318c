#pragma once

#include <c10/core/Device.h>

namespace rmsnorm::test {

/// Where the tests of behaviour run: the same objects are linked into a CPU and a CUDA binary, each
/// with its own definition of this.
c10::Device test_device();

}  // namespace rmsnorm::test
