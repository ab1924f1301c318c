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
  // Rows that start anywhere: where they are written by the vectors that they are read by.
  for (const std::int64_t cols : {521, 4097}) {
    CAPTURE(cols);
    Problem p = problem((device.l2_bytes + 2 * cols - 1) / (2 * cols), cols);
    CHECK_FALSE(plan_forward(p, device).keep_x);
    p.one_shift = true;
    CHECK(plan_forward(p, device).keep_x);
    --p.rows;
    CHECK_FALSE(plan_forward(p, device).keep_x);
  }
  // Those that no kernel with such loads takes.
  for (const std::int64_t cols : {7, 255, 2000001}) {
    Problem p = problem(1 << 20, cols);
    p.one_shift = true;
    CHECK_FALSE(plan_forward(p, device).keep_x);
  }
}

TEST_CASE("A block has three vectors of its row per thread, but where two or four are better",
          "[policy]") {
  struct Case {
    int cols, bytes, gamma_bytes, vectors, threads;
  };
  for (const Case& c :
       {Case{1032, 2, 2, 3, 64}, Case{2304, 2, 2, 3, 96}, Case{2560, 2, 2, 2, 160},
        Case{3584, 2, 2, 3, 160}, Case{4096, 2, 2, 2, 256}, Case{4104, 2, 2, 3, 192},
        Case{6144, 2, 2, 3, 256}, Case{7680, 2, 2, 3, 320}, Case{7688, 2, 2, 4, 256},
        Case{8192, 2, 2, 4, 256}, Case{3584, 2, 4, 2, 224}, Case{4096, 2, 4, 2, 256},
        Case{4104, 2, 4, 3, 192}, Case{1152, 4, 4, 3, 96}, Case{3840, 4, 4, 3, 320},
        Case{4096, 4, 4, 2, 512}, Case{4100, 4, 4, 4, 288}}) {
    CAPTURE(c.cols, c.bytes, c.gamma_bytes);
    Problem p = problem(1000, c.cols, c.bytes);
    p.gamma_bytes = c.gamma_bytes;
    const ForwardPlan plan = plan_forward(p, Device{});
    CHECK(plan.path == ForwardPath::block);
    CHECK(plan.vectors == c.vectors);
    CHECK(plan.threads == c.threads);
  }
}

TEST_CASE("All vectors of a thread but the last lie in the row", "[policy]") {
  for (const int capability : {80, 90}) {
    Device device;
    device.compute_capability = capability;
    for (std::int64_t cols = 1; cols <= 20000; ++cols) {
      for (const auto& [bytes, gamma_bytes] : {std::pair{2, 2}, std::pair{2, 4}, std::pair{4, 4}}) {
        Problem p = problem(1000, cols, bytes);
        p.gamma_bytes = gamma_bytes;
        const ForwardPlan plan = plan_forward(p, device);
        const std::int64_t width = 16 / bytes, all_but_last = plan.threads * (plan.vectors - 1);
        CAPTURE(capability, cols, bytes, gamma_bytes);
        if (plan.path == ForwardPath::block) {
          CHECK(all_but_last * width <= cols);
          CHECK((plan.vectors != 3 || plan.threads <= kForwardThreadsOfThree));
        }
        // Of the fewest whole vectors that a row has, wherever it starts; gamma is read one
        // further.
        if (plan.path == ForwardPath::peel) CHECK(all_but_last + 1 <= (cols - width + 1) / width);
      }
    }
  }
}

TEST_CASE("Lanes take several rows at once where that leaves eight blocks for every SM",
          "[policy]") {
  const Device device;
  for (const auto& [cols, at_once] : {std::pair{8, 4}, std::pair{128, 4}, std::pair{256, 4},
                                      std::pair{512, 4}, std::pair{1024, 2}}) {
    CAPTURE(cols);
    const int lanes = std::min(cols / 8, 32);
    const std::int64_t block_rows = kForwardLanesThreads / lanes * at_once;
    const std::int64_t rows = (8 * device.sms - 1) * block_rows;
    CHECK(plan_forward(problem(rows, cols), device).rows == 1);
    CHECK(plan_forward(problem(rows + 1, cols), device).rows == at_once);
  }
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
