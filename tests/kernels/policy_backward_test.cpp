#include <algorithm>

#include "kernels/policy_support.hpp"
#include "support/catch.hpp"

using namespace rmsnorm::kernels::cuda;

TEST_CASE("Every column of a row has a thread in the backward, and the ring fits the shared memory",
          "[policy]") {
  for (const std::int64_t cols : kCols) {
    for (const int bytes : {2, 4}) {
      for (const int gamma_bytes : {bytes, 4}) {
        for (const std::int64_t rows : {1, 5, 9, 600, 16384, 1 << 20}) {
          for (const std::size_t shared : {std::size_t{99} * 1024, std::size_t{227} * 1024}) {
            Problem p = problem(rows, cols, bytes);
            p.gamma_bytes = gamma_bytes;
            Device device;
            device.shared_bytes = shared;
            for (const bool one_shift : {false, true}) {
              p.one_shift = one_shift && !p.aligned;
              const BackwardPlan plan = plan_backward(p, device);
              const bool whole =
                  plan.path == BackwardPath::frame || plan.path == BackwardPath::tiny;
              const bool single = plan.path != BackwardPath::ring &&
                                  plan.path != BackwardPath::long_rows && !whole && !p.aligned;
              const std::int64_t width = single ? 1 : 16 / bytes;
              CAPTURE(rows, cols, bytes, gamma_bytes, shared, one_shift,
                      static_cast<int>(plan.path));
              CHECK(plan.blocks >= 1);
              if (plan.path == BackwardPath::lanes) {
                CHECK(plan.lanes * plan.vectors * width >= cols);
                CHECK(plan.vectors <= (p.aligned ? 3 : 8));
                CHECK((!p.aligned ||
                       thread_ring_bytes(plan.vectors, lanes_ring_stages(plan.vectors)) < shared));
              }
              if (plan.path == BackwardPath::groups) {
                CHECK(plan.group_threads * plan.vectors * width >= cols);
                CHECK((plan.group_threads % 32 == 0 && plan.group_threads >= 64));
                CHECK(plan.groups * plan.group_threads <= kThreadRingBlock);
                CHECK((plan.vectors == 2 || plan.vectors == 3));
                CHECK(thread_ring_bytes(plan.vectors, kGroupsStages) < shared);
              }
              if (plan.path == BackwardPath::frame) {
                CHECK(cols >= width);
                CHECK(plan.group_threads % 32 == 0);
                CHECK(plan.group_threads <= frame_shape(plan.vectors).threads);
                // What a mutant has for all plans.
                CHECK(plan.group_threads <= frame_shape(kFrameMaxVectors).threads);
                CHECK(plan.stages >= frame_shape(kFrameMaxVectors).stages);
                // Every vector of a tile has a thread, and so has the sum of every row.
                CHECK(plan.tile_rows * cols * bytes % 16 == 0);
                CHECK(plan.group_threads * plan.vectors * 16 >= plan.tile_rows * cols * bytes);
                CHECK(plan.tile_rows * plan.lanes <= plan.group_threads);
                CHECK(frame_shared_bytes(p, plan) <= shared);
              }
              if (plan.path == BackwardPath::tiny) {
                CHECK(cols * bytes < 16);
                // The vectors of a lane are whole rows together.
                CHECK(plan.tile_rows % 32 == 0);
                CHECK(plan.tile_rows / 32 * cols * bytes == plan.vectors * 16);
                CHECK(plan.group_threads == tiny_shape(plan.vectors).threads);
                CHECK(plan.stages == tiny_shape(plan.vectors).stages);
                CHECK(tiny_shared_bytes(plan) <= shared);
                // Where the rings were, every warp leaves its sums.
                CHECK(static_cast<std::int64_t>(tiny_shared_bytes(plan)) >=
                      plan.group_threads / 32 * cols * 4);
              }
              if (plan.path == BackwardPath::long_rows) {
                // A row may lie in a vector more, and blocks of columns overlap by one.
                const std::int64_t most = cols + (p.aligned ? 0 : width - 1);
                CHECK(plan.dot_chunks * kLongThreads * kLongChunkVectors * width >= most);
                CHECK(plan.blocks % plan.row_chunks == 0);
                CHECK(plan.blocks / plan.row_chunks * (kLongColumnThreads - (p.aligned ? 0 : 1)) *
                          width >=
                      most);
                CHECK(plan.launch_rows <= rows);
                // No chunk of a launch is empty.
                const std::int64_t chunk_rows =
                    (plan.launch_rows + plan.row_chunks - 1) / plan.row_chunks;
                CHECK((plan.row_chunks - 1) * chunk_rows < plan.launch_rows);
                // Launches after the first add to what it left.
                const bool leaves_parts = plan.row_chunks > 1 || plan.launch_rows < rows;
                CHECK(plan.partial_rows == (leaves_parts ? plan.row_chunks : 0));
              }
              if (plan.path != BackwardPath::ring) continue;
              // A shifted row may need a vector more.
              CHECK(plan.cluster * plan.group_threads * plan.vectors * width >=
                    cols + (p.aligned ? 0 : width - 1));
              CHECK(plan.groups * plan.group_threads + 32 <= (p.aligned ? 544 : 512));
              // The cluster kernel of two vectors waits for the third row before it lets go of the
              // first.
              CHECK(plan.stages >= (plan.cluster > 1 && plan.vectors == 2 ? 3 : 2));
              CHECK(plan.stages * plan.groups <= kMaxRingSlots);
              CHECK(ring_shared_bytes(p, plan) <= shared);
              CHECK(plan.blocks % plan.cluster == 0);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("A group of a shifted ring meets rows of one shift only", "[policy]") {
  for (const std::int64_t cols : kCols) {
    for (const int bytes : {2, 4}) {
      for (const int sms : {1, 7, 108, 132, 148}) {
        for (const std::int64_t rows : {513, 600, 4099, 16384, 1 << 20}) {
          Problem p = problem(rows, cols, bytes);
          if (p.aligned) continue;
          p.one_shift = rows % 2 == 1;
          Device device;
          device.sms = sms;
          const BackwardPlan plan = plan_backward(p, device);
          if (plan.path != BackwardPath::ring || plan.cluster > 1) continue;
          CAPTURE(cols, bytes, sms, rows, plan.blocks, plan.groups);
          CHECK(plan.blocks * plan.groups * cols * bytes % 16 == 0);
          CHECK(plan.blocks <= std::max(sms, 8));
        }
      }
    }
  }
}

TEST_CASE("A shifted cluster has a partial row for every shift that it meets", "[policy]") {
  for (const std::int64_t cols : kCols) {
    for (const int bytes : {2, 4}) {
      for (const std::int64_t rows : {3, 17, 385, 4099}) {
        Problem p = problem(rows, cols, bytes);
        p.one_shift = !p.aligned && rows != 17;
        Device device;
        device.max_cluster = 16;
        const BackwardPlan plan = plan_backward(p, device);
        if (p.aligned || plan.path != BackwardPath::ring || plan.cluster == 1) continue;
        CAPTURE(cols, bytes, rows, plan.cluster, plan.blocks, plan.vectors);
        const std::int64_t clusters = plan.blocks / plan.cluster;
        CHECK(clusters <= rows);
        CHECK(plan.partial_rows == clusters + std::min(rows, shift_period(p)) - 1);
        CHECK(plan.group_threads == kShiftedThreads);
        CHECK((plan.vectors >= 3 && plan.vectors <= 5));
        CHECK(slice_vectors(p, plan.cluster) <= kShiftedThreads * plan.vectors);
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
        CHECK(plan.partial_rows * partial_pitch(cols) * (float64 ? 8 : 4) + long_floats(plan) * 4 <=
              std::int64_t{8} << 20);
      }
    }
  }
}

TEST_CASE("Long rows leave their dots in scratch of a bounded size, and few of them in one launch",
          "[policy]") {
  for (const std::int64_t cols : {15361, 65537, 262152, 1048583, 4000001, 268435459}) {
    for (const std::int64_t rows : {1, 3, 385, 4099, 1 << 20}) {
      const BackwardPlan plan = plan_backward(problem(rows, cols), Device{});
      if (plan.path != BackwardPath::long_rows) continue;
      CAPTURE(rows, cols, plan.launch_rows);
      CHECK(plan.launch_rows >= 1);
      CHECK(long_floats(plan) * 4 <= std::max<std::int64_t>(64 * 1024, cols / 4));
      if (rows <= 385) CHECK(plan.launch_rows == rows);
      if (rows == 3) CHECK((cols < (1 << 20) || plan.partial_rows == 0));
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
    p.wants_dgamma = true;
    p.wants_dx = false;
    const BackwardPlan many = plan_backward(p, Device{});
    if (many.path == BackwardPath::long_rows) {
      CHECK(long_floats(many) == 0);
      CHECK(many.launch_rows == p.rows);
    }
    p.rows = 4;
    const BackwardPlan few = plan_backward(p, Device{});
    if (few.path != BackwardPath::split) continue;
    CHECK(few.row_blocks == 0);
    CHECK(few.blocks > 0);
  }
}
