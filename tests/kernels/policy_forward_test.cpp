#include <algorithm>

#include "kernels/policy_support.hpp"
#include "support/catch.hpp"

using namespace rmsnorm::kernels::cuda;

TEST_CASE("The forward's reduction does not depend on the number of rows", "[policy]") {
  for (const std::int64_t cols : kCols) {
    for (const int bytes : {2, 4}) {
      CAPTURE(cols, bytes);
      const ForwardPlan one = plan_forward(problem(1, cols, bytes), Device{});
      for (const std::int64_t rows : {2, 129, 16384, 1 << 20}) {
        Problem p = problem(rows, cols, bytes);
        p.one_shift = rows == 2 && !p.aligned;  // of some counts, and not of all
        const ForwardPlan many = plan_forward(p, Device{});
        CHECK(many.path == one.path);
        CHECK(many.lanes == one.lanes);
        CHECK(many.threads == one.threads);
        CHECK(many.vectors == one.vectors);
        // Rows in a block share nothing but what two of them have in one vector.
        CHECK(many.cluster == one.cluster);
        CHECK(many.chunks == one.chunks);
        CHECK(many.stages == one.stages);
      }
    }
  }
}

TEST_CASE("L2 keeps x from a quarter of it on, on the device that it was measured on", "[policy]") {
  Device device;
  for (const auto& [cols, bytes] : {std::pair{128, 2}, std::pair{4096, 2}, std::pair{4096, 4},
                                    std::pair{20000, 2}, std::pair{65536, 2}}) {
    CAPTURE(cols, bytes);
    const std::int64_t row = std::int64_t{cols} * bytes;
    const std::int64_t rows = (device.l2_bytes / 4 + row - 1) / row;
    CHECK(plan_forward(problem(rows, cols, bytes), device).keep_x);
    CHECK_FALSE(plan_forward(problem(rows - 1, cols, bytes), device).keep_x);
    Device other = device;
    for (const int capability : {80, 89, 100, 120}) {
      other.compute_capability = capability;
      CHECK_FALSE(plan_forward(problem(rows, cols, bytes), other).keep_x);
    }
    other = device;
    other.l2_bytes *= 2;
    CHECK_FALSE(plan_forward(problem(rows, cols, bytes), other).keep_x);
  }
  // Rows that forward_peel_kernel and others take, which have no such loads.
  for (const std::int64_t cols : {7, 255, 513, 4097, 2000001})
    CHECK_FALSE(plan_forward(problem(1 << 20, cols), device).keep_x);
}

TEST_CASE("A persistent forward has a cluster at least, on a slice of a device as well",
          "[policy]") {
  for (const int sms : {1, 8, 14, 16, 26, 132}) {
    Device device;
    device.sms = sms;
    device.max_cluster = 16;
    for (const std::int64_t cols : {32776, 53256, 65536, 131072, 262144}) {
      const ForwardPlan plan = plan_forward(problem(1000, cols, 2), device);
      CAPTURE(sms, cols);
      REQUIRE(plan.path == ForwardPath::ring);
      CHECK(plan.blocks >= plan.cluster);
      CHECK(plan.blocks % plan.cluster == 0);
    }
  }
}

TEST_CASE("Every column of a row has a thread in the forward", "[policy]") {
  for (const std::int64_t cols : kCols) {
    for (const auto& [bytes, one_shift] :
         {std::pair{2, false}, std::pair{2, true}, std::pair{4, false}, std::pair{4, true}}) {
      Problem p = problem(1000, cols, bytes);
      p.one_shift = one_shift && !p.aligned;
      const ForwardPlan plan = plan_forward(p, Device{});
      const std::int64_t width = p.aligned ? 16 / bytes : 1;
      CAPTURE(cols, bytes, one_shift, static_cast<int>(plan.path));
      switch (plan.path) {
        case ForwardPath::lanes:
          CHECK(plan.lanes * plan.vectors * width >= cols);
          break;
        case ForwardPath::block:
          CHECK(plan.threads * plan.vectors * width >= cols);
          break;
        case ForwardPath::tiny:
          CHECK(cols * bytes < 16);
          break;
        case ForwardPath::frame:
          CHECK(cols >= 16 / bytes);
          CHECK(cols * bytes <= 512);
          CHECK(plan.vectors == kForwardFrameVectors);
          CHECK(plan.threads <= kForwardFrameShape.threads);
          CHECK(plan.stages == kForwardFrameShape.stages);
          // Every vector of a part of a tile has a thread, and so has the sum of every row.
          CHECK(plan.rows % plan.vectors == 0);
          CHECK(plan.rows / plan.vectors * cols * bytes % 16 == 0);
          CHECK(plan.threads * plan.vectors * 16 >= plan.rows * cols * bytes);
          CHECK(plan.rows / plan.vectors * plan.lanes <= plan.threads);
          CHECK(frame_shared_bytes(p, plan) <= Device{}.shared_bytes / 4);
          CHECK((plan.blocks >= 1 &&
                 plan.blocks <= std::max<std::int64_t>(1, p.rows / plan.rows + 1)));
          // In place: two pieces per lane at most, and the sum's lanes are among those.
          CHECK(2 * frame_piece_lanes(p) * 16 >= (cols - 1) * bytes + 16);
          CHECK(
              (frame_piece_lanes(p) == 32 || frame_piece_lanes(p) * 16 >= (cols - 1) * bytes + 16));
          CHECK(plan.lanes <= frame_piece_lanes(p));
          break;
        case ForwardPath::peel_warp:
          CHECK(32 * plan.vectors * (16 / bytes) >= cols - 2 * (16 / bytes));
          break;
        case ForwardPath::peel:
          CHECK(plan.threads * plan.vectors * (16 / bytes) >= cols - 2 * (16 / bytes));
          break;
        case ForwardPath::cluster:
          CHECK(plan.cluster <= Device{}.max_cluster);
          // A row that starts anywhere may lie in a vector more.
          CHECK(plan.cluster * slice_vectors(p, plan.cluster) * (16 / bytes) >=
                cols + (p.aligned ? 0 : 16 / bytes - 1));
          // Beside what the kernel has of its own; and no more blocks than that takes.
          CHECK(slice_vectors(p, plan.cluster) * 16 <=
                (plan.cluster == Device{}.max_cluster ? 225 : 112) * 1024);
          CHECK((plan.cluster == 1 || slice_vectors(p, plan.cluster / 2) * 16 > 111 * 1024));
          CHECK(plan.threads == (plan.cluster == 1 && slice_vectors(p, 1) <= 3072 ? 256 : 512));
          break;
        case ForwardPath::ring:
          CHECK(plan.cluster <= Device{}.max_cluster);
          CHECK(plan.threads * plan.vectors * plan.cluster * (16 / bytes) >= cols);
          CHECK((plan.vectors == 4 || plan.vectors == 8));
          CHECK(plan.stages >= 2);
          CHECK(ring_shared_bytes(p, plan) <= Device{}.shared_bytes);
          CHECK((plan.blocks >= plan.cluster && plan.blocks % plan.cluster == 0));
          break;
        case ForwardPath::long_rows:
          CHECK(plan.chunks * kLongThreads * kLongChunkVectors * (16 / bytes) >=
                cols + (p.aligned ? 0 : 16 / bytes - 1));
          break;
        case ForwardPath::two_pass:
        case ForwardPath::any:
          break;
      }
      CHECK((plan.threads % 32 == 0 && plan.threads <= 512));
    }
  }
}

TEST_CASE("The lanes that sum up a short row that starts anywhere depend on cols and dtype alone",
          "[policy]") {
  for (const int bytes : {2, 4}) {
    for (std::int64_t cols = 16 / bytes; cols * bytes <= 512; ++cols) {
      Problem p = problem(1000, cols, bytes);
      p.aligned = false;
      const ForwardPlan plan = plan_forward(p, Device{});
      CAPTURE(cols, bytes);
      REQUIRE(plan.path == ForwardPath::frame);
      CHECK(plan.rows >= 1);
      CHECK(plan.rows / plan.vectors * plan.lanes <= plan.threads);
      // A row of whole vectors that happens to lie at a boundary has the bits of aligned ones.
      if (cols * bytes % 16 == 0)
        CHECK(plan.lanes == plan_forward(problem(1000, cols, bytes), Device{}).lanes);
      for (const std::int64_t rows : {1, 7, 1 << 20}) {
        for (const int gamma_bytes : {bytes, 4}) {
          for (const std::size_t shared : {std::size_t{48} * 1024, std::size_t{227} * 1024}) {
            Problem other = p;
            other.rows = rows;
            other.gamma_bytes = gamma_bytes;
            other.dense = rows == 7;
            Device device;
            device.sms = 46;
            device.shared_bytes = shared;
            CHECK(plan_forward(other, device).lanes == plan.lanes);
          }
        }
      }
    }
  }
}
