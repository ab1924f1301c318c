#include "kernels/cuda/policy.hpp"

#include <algorithm>
#include <limits>

#include "kernels/common/divisor.hpp"
#include "support/catch.hpp"

using namespace rmsnorm::kernels::cuda;

namespace {

Problem problem(std::int64_t rows, std::int64_t cols, int bytes = 2) {
  Problem p;
  p.rows = rows;
  p.cols = cols;
  p.element_bytes = p.gamma_bytes = bytes;
  p.aligned = cols * bytes % 16 == 0;
  p.dense = true;
  return p;
}

const std::int64_t kCols[] = {
    1,       2,       3,      4,      5,      6,      7,      8,      9,      16,      31,
    64,      65,      127,    128,    129,    255,    256,    257,    264,    383,     385,
    511,     512,     513,    768,    776,    1000,   1023,   1024,   1025,   1032,    1151,
    1153,    2047,    2048,   2049,   2056,   3584,   3592,   4096,   4097,   4104,    4608,
    4609,    5120,    6144,   8184,   8192,   8193,   8200,   10247,  10249,  12288,   15353,
    15361,   16384,   16385,  16392,  19999,  20000,  23033,  23049,  24569,  24577,   30713,
    30721,   32761,   32768,  32769,  32776,  57073,  57089,  65536,  65537,  92161,   131072,
    245753,  245761,  262144, 262152, 269234, 294906, 307193, 307201, 524288, 1048576, 1843200,
    1843201, 1843208, 4000001};

}  // namespace

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
  // Rows that do not start alike share lines: kept, they gain nothing.
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

TEST_CASE("Rows that are not dense change the backward's plan and not the forward's", "[policy]") {
  for (const std::int64_t cols : kCols) {
    Problem p = problem(16384, cols);
    p.dense = false;
    CAPTURE(cols);
    const ForwardPlan as_dense = plan_forward(problem(16384, cols), Device{});
    CHECK(plan_forward(p, Device{}).path == as_dense.path);
    CHECK(plan_backward(p, Device{}).path != BackwardPath::tiny);
    CHECK(plan_backward(p, Device{}).path != BackwardPath::frame);
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

TEST_CASE("A multiplication and a shift give the quotient", "[policy]") {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t divisor :
       {std::int64_t{2}, std::int64_t{3}, std::int64_t{7}, std::int64_t{64}, std::int64_t{65},
        std::int64_t{1000003}, (std::int64_t{1} << 31) - 1, (std::int64_t{1} << 32) + 1,
        (std::int64_t{1} << 62) - 1, std::int64_t{1} << 62}) {
    const rmsnorm::kernels::Divisor by(divisor);
    for (const std::int64_t times :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, most / divisor / 2, most / divisor}) {
      const std::int64_t product = times * divisor;
      for (const std::int64_t value :
           {product - 1, product, product + (product < most ? 1 : 0), most}) {
        if (value < 0) continue;
        CAPTURE(divisor, value);
        CHECK(by.quotient(value) == value / divisor);
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

TEST_CASE("A slice of a device with one processor gets no clusters", "[policy]") {
  Device device;
  device.sms = 1;
  device.max_cluster = 1;
  for (const std::int64_t cols : kCols) {
    for (const int gamma_bytes : {2, 4}) {
      for (const bool one_shift : {false, true}) {
        Problem p = problem(4099, cols, 2);
        p.gamma_bytes = gamma_bytes;
        p.one_shift = one_shift && !p.aligned;
        CAPTURE(cols, gamma_bytes, one_shift);
        CHECK(plan_forward(p, device).cluster == 1);
        CHECK(plan_backward(p, device).cluster == 1);
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
      CHECK(plan_forward(problem(4096, cols), device).path != ForwardPath::ring);
      CHECK(plan_forward(problem(4096, cols), device).path != ForwardPath::long_rows);
      CHECK(plan_backward(problem(4096, cols), device).path != BackwardPath::ring);
      CHECK(plan_backward(problem(4096, cols), device).path != BackwardPath::long_rows);
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
