#include "kernels/cuda/policy.hpp"

#include <set>

#include "support/catch.hpp"

using namespace rmsnorm::kernels::cuda;

namespace {

Problem problem(std::int64_t rows, std::int64_t cols, int bytes = 2) {
  Problem p;
  p.rows = rows;
  p.cols = cols;
  p.element_bytes = p.gamma_bytes = bytes;
  p.aligned = cols * bytes % 16 == 0;
  return p;
}

const std::int64_t kCols[] = {
    1,     2,     7,     8,     16,    31,     64,     127,    128,    255,    256,   257,   264,
    511,   512,   513,   1000,  1023,  1024,   1025,   1032,   2047,   2048,   2049,  2056,  4096,
    4097,  4104,  4608,  4609,  5120,  6144,   8184,   8192,   8193,   8200,   12288, 16384, 16385,
    16392, 20000, 32768, 65536, 65537, 131072, 262144, 262152, 524288, 1048576};

}  // namespace

TEST_CASE("The forward's reduction does not depend on the number of rows", "[policy]") {
  for (const std::int64_t cols : kCols) {
    for (const int bytes : {2, 4}) {
      CAPTURE(cols, bytes);
      const ForwardPlan one = plan_forward(problem(1, cols, bytes), Device{});
      for (const std::int64_t rows : {2, 129, 16384, 1 << 20}) {
        const ForwardPlan many = plan_forward(problem(rows, cols, bytes), Device{});
        CHECK(many.path == one.path);
        CHECK(many.lanes == one.lanes);
        CHECK(many.threads == one.threads);
        CHECK(many.vectors == one.vectors);
        CHECK(many.cluster == one.cluster);
      }
    }
  }
}

TEST_CASE("Every column of a row has a thread in the forward", "[policy]") {
  for (const std::int64_t cols : kCols) {
    for (const int bytes : {2, 4}) {
      const Problem p = problem(1000, cols, bytes);
      const ForwardPlan plan = plan_forward(p, Device{});
      const std::int64_t width = p.aligned ? 16 / bytes : 1;
      CAPTURE(cols, bytes, static_cast<int>(plan.path));
      switch (plan.path) {
        case ForwardPath::lanes:
          CHECK(plan.lanes * plan.vectors * width >= cols);
          break;
        case ForwardPath::block:
          CHECK(plan.threads * plan.vectors * width >= cols);
          break;
        case ForwardPath::peel:
          CHECK(plan.threads * plan.vectors * (16 / bytes) >= cols - 2 * (16 / bytes));
          break;
        case ForwardPath::cluster:
          CHECK(plan.cluster <= 16);
          break;
        case ForwardPath::two_pass:
        case ForwardPath::any:
          break;
      }
      CHECK((plan.threads % 32 == 0 && plan.threads <= 512));
    }
  }
}

TEST_CASE("Every column of a row has a thread in the backward, and the ring fits the shared memory",
          "[policy]") {
  for (const std::int64_t cols : kCols) {
    for (const int bytes : {2, 4}) {
      for (const int gamma_bytes : {bytes, 4}) {
        for (const std::int64_t rows : {1, 600, 16384}) {
          for (const std::size_t shared : {std::size_t{99} * 1024, std::size_t{227} * 1024}) {
            Problem p = problem(rows, cols, bytes);
            p.gamma_bytes = gamma_bytes;
            Device device;
            device.shared_bytes = shared;
            const BackwardPlan plan = plan_backward(p, device);
            const std::int64_t width = p.aligned ? 16 / bytes : 1;
            CAPTURE(rows, cols, bytes, gamma_bytes, shared, static_cast<int>(plan.path));
            CHECK(plan.blocks >= 1);
            if (plan.path == BackwardPath::lanes) {
              CHECK(plan.lanes * plan.vectors * width >= cols);
              CHECK(plan.vectors <= (p.aligned ? 1 : 8));
            }
            if (plan.path != BackwardPath::ring) continue;
            CHECK(plan.cluster * plan.group_threads * plan.vectors * width >= cols);
            CHECK(plan.groups * plan.group_threads + 32 <= (p.aligned ? 544 : 512));
            CHECK(plan.stages >= 2);
            CHECK(plan.stages * plan.groups <= kMaxRingSlots);
            CHECK(ring_shared_bytes(p, plan) <= shared);
            CHECK(plan.blocks % plan.cluster == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("Backward's scratch stays within 8 MB up to 16384 columns, whatever the rows",
          "[policy]") {
  for (const std::int64_t cols : kCols) {
    if (cols > 16384) continue;
    for (const std::int64_t rows : {1, 129, 4096, 1 << 20}) {
      for (const bool float64 : {false, true}) {
        Problem p = problem(rows, cols, float64 ? 8 : 2);
        p.float64 = float64;
        const BackwardPlan plan = plan_backward(p, Device{});
        CAPTURE(rows, cols, float64);
        CHECK(plan.partial_rows * partial_pitch(cols) * (float64 ? 8 : 4) <= std::int64_t{8} << 20);
      }
    }
  }
}

TEST_CASE("What sm_90 brought is not chosen before it", "[policy]") {
  for (const std::int64_t cols : kCols) {
    for (const int capability : {80, 86, 89}) {
      Device device;
      device.compute_capability = capability;
      device.max_cluster = 8;
      CAPTURE(cols, capability);
      CHECK(plan_forward(problem(4096, cols), device).path != ForwardPath::cluster);
      CHECK(plan_backward(problem(4096, cols), device).path != BackwardPath::ring);
    }
  }
}

TEST_CASE("A gradient that nobody wants has no blocks and no scratch", "[policy]") {
  for (const std::int64_t cols : kCols) {
    Problem p = problem(4096, cols);
    p.wants_dgamma = false;
    CAPTURE(cols);
    const BackwardPlan plan = plan_backward(p, Device{});
    CHECK(plan.partial_rows == 0);
    CHECK(plan.pace == 0);
    p.wants_dgamma = true;
    p.wants_dx = false;
    p.rows = 0;
    CHECK(plan_backward(p, Device{}).row_blocks == 0);
  }
}
