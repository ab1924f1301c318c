#include <cmath>
#include <limits>

#include "faults/support.hpp"
#include "kernels/cuda/policy.hpp"

// LIMITS, REDUCE and EMPTY: sizes. Guards behind every buffer, the bits of a second call and all
// elements are what check_passes looks at.

namespace rmsnorm::test {
namespace {

TEST_CASE("B009 lengths beside a vector's leave the next row alone", "[limits]") {
  for (const std::int64_t cols : {1,   2,   3,   5,   7,   31,  33,  63,   65,   127,  129,
                                  255, 257, 511, 513, 767, 768, 769, 1023, 1025, 4095, 4097}) {
    for (const std::int64_t rows : {1, 2, 7}) {
      for (const Dtype dtype : kDtypes) {
        for (const Operation operation : kOperations) check_passes(operation, {rows, cols, dtype});
      }
    }
  }
}

TEST_CASE("B010 no rows give empty results, zeros for dgamma, and the next call works",
          "[limits]") {
  for (const rmsnorm_implementation* table : kernels()) {
    for (const at::ScalarType type : all_types()) {
      const at::Tensor x = at::empty({0, 64}, options(type)), gamma = random({64}, type);
      const Results got = run(*table, x, gamma, x);
      CHECK(got.y.sizes() == at::IntArrayRef({0, 64}));
      CHECK(got.dx.sizes() == at::IntArrayRef({0, 64}));
      CHECK(same_bits(got.dgamma, at::zeros({64}, options(type))));
      const at::Tensor more = random({3, 64}, type);
      check_against_oracle(run(*table, more, gamma, more), more, gamma, more);
    }
  }
}

TEST_CASE("B011 more rows than a grid's 65535 are all computed", "[limits]") {
  for (const std::int64_t rows : {65535, 65536, 65537, 131075}) {
    for (const std::int64_t cols : {8, 64}) {
      const at::Tensor x = random({rows, cols}, at::kFloat), gamma = random({cols}, at::kFloat, 2);
      check_kernels(x, gamma, 0.5 * x + 1);
    }
  }
  if (!test_device().is_cuda()) return;
  const at::Tensor x = random({65537, 1024}, at::kFloat), gamma = random({1024}, at::kFloat, 2);
  check_kernels(x, gamma, 0.5 * x + 1);
}

/// What a table was asked for, by calls that compute nothing.
struct Asked {
  static inline rmsnorm_forward_args forward;
  static inline rmsnorm_backward_args backward;
};

rmsnorm_implementation asking(const rmsnorm_implementation& table) {
  rmsnorm_implementation copy = table;
  copy.backward_workspace_bytes = nullptr;
  copy.forward = [](const rmsnorm_forward_args* args) -> std::int32_t {
    Asked::forward = *args;
    return RMSNORM_OK;
  };
  copy.backward = [](const rmsnorm_backward_args* args) -> std::int32_t {
    Asked::backward = *args;
    return RMSNORM_OK;
  };
  return copy;
}

TEST_CASE("B013 sizes beyond 2^31 and 2^32 elements reach the kernels whole", "[limits]") {
  // Of one stored number, and of results that nobody touches: no memory is needed.
  const rmsnorm_implementation table = asking(*kernels()[1]);
  constexpr std::int64_t k2To32 = std::int64_t{1} << 32;
  for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{k2To32 + 1, 1},
                                   {4194305, 512},
                                   {175000, 12288},
                                   {1, k2To32 + 3}}) {
    if (test_device().is_cuda() && rows * cols > std::int64_t{3} << 30) continue;
    const at::Tensor one = at::ones({1, 1}, options(at::kHalf)),
                     gamma = at::ones({1}, options(at::kHalf)).expand({cols});
    const at::Tensor x = one.expand({rows, cols}).requires_grad_();
    if (cols > 1 && rows * cols * 2 > std::int64_t{9} << 30) continue;
    const at::Tensor dense_x = cols == 1 ? x : at::empty({rows, cols}, x.options());
    const at::Tensor leaf = dense_x.detach().requires_grad_();
    const at::Tensor y = rms_norm_with(table, leaf, {}, {cols}, 1e-6, Contract::full);
    CHECK(Asked::forward.rows == rows);
    CHECK(Asked::forward.cols == cols);
    CHECK(y.numel() == rows * cols);
    const auto dx = torch::autograd::grad({y}, {leaf}, {dense_x.detach()});
    CHECK(Asked::backward.rows == rows);
    CHECK(Asked::backward.cols == cols);
    CHECK(dx[0].numel() == rows * cols);
  }
  // Scratch is counted in 64 bits: M*N*4 for rowwise, a few rows for tuned.
  rmsnorm_backward_args args{};
  args.rows = 1048578;
  args.cols = 4096;
  args.x = args.dy = {.data = nullptr,
                      .inner_rows = args.rows,
                      .inner_stride = args.cols,
                      .outer_stride = args.rows * args.cols,
                      .dtype = RMSNORM_BFLOAT16};
  args.gamma_dtype = RMSNORM_BFLOAT16;
  std::int16_t nothing = 0;
  args.dgamma = args.dx = &nothing;
  args.gamma = &nothing;
  CHECK(kernels()[0]->backward_workspace_bytes(&args) >=
        static_cast<std::size_t>(args.rows * args.cols * 4));
  CHECK(kernels()[1]->backward_workspace_bytes(&args) <= std::size_t{8} << 20);
}

TEST_CASE("B108 scratch for dgamma does not grow with the rows", "[limits]") {
  for (const std::int64_t cols : {1, 128, 8192, 16384}) {
    std::size_t most = 0;
    for (const std::int64_t rows : {1, 600, 131072, 1 << 24}) {
      rmsnorm_backward_args args{};
      args.rows = rows;
      args.cols = cols;
      args.x = args.dy = {.data = nullptr,
                          .inner_rows = rows,
                          .inner_stride = cols,
                          .outer_stride = rows * cols,
                          .dtype = RMSNORM_BFLOAT16};
      args.gamma_dtype = RMSNORM_BFLOAT16;
      std::int16_t nothing = 0;
      args.dgamma = args.dx = &nothing;
      args.gamma = &nothing;
      most = std::max(most, kernels()[1]->backward_workspace_bytes(&args));
    }
    CAPTURE(cols, most);
    CHECK(most <= std::size_t{64} << 20);
    if (cols <= 16384) CHECK(most <= (std::size_t{8} << 20) + (64 << 10));
  }
}

TEST_CASE("B014 every row is in dgamma, also the last of a ragged block", "[limits]") {
  for (const std::int64_t rows : {1, 2, 31, 33, 1023, 1025, 4099, 65537}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = random({rows, 32}, type), gamma = random({32}, type, 2);
      at::Tensor dy = at::zeros_like(x);
      dy[rows - 1].copy_(random({32}, type, 3));
      for (const rmsnorm_implementation* table : kernels()) {
        CAPTURE(table->name, rows, text(type));
        const at::Tensor got = run(*table, x, gamma, dy).dgamma;
        const at::Tensor last = x.narrow(0, rows - 1, 1), last_dy = dy.narrow(0, rows - 1, 1);
        CHECK(used_of_rounding(got, reference::expected_dgamma(last, last_dy, 1e-6), 33) <= 1);
      }
    }
    check_passes(Operation::gamma, {std::min<std::int64_t>(rows, 4099), 32, Dtype::float32});
  }
}

TEST_CASE("B027 rows that end in part of a warp are summed whole", "[limits]") {
  for (const std::int64_t cols : {20, 36, 100, 180, 360, 720, 1440, 2880, 2900, 5760}) {
    for (const Dtype dtype : {Dtype::float32, Dtype::float16, Dtype::bfloat16}) {
      check_passes(Operation::forward, {3, cols, dtype});
      check_passes(Operation::backward, {3, cols, dtype});
    }
  }
}

TEST_CASE("B066 tall narrow problems keep to their scratch", "[limits]") {
  for (const std::int64_t rows : {65535, 65537, 100000}) {
    for (const std::int64_t cols : {1, 8, 32}) {
      check_passes(Operation::gamma, {rows, cols, Dtype::float32});
    }
  }
  check_passes(Operation::gamma, {100000, 64, Dtype::bfloat16});
  check_passes(Operation::gamma, {1000003, 1, Dtype::bfloat16});
  if (!test_device().is_cuda()) return;
  for (const std::int64_t cols : {8, 32, 64, 128}) {
    check_passes(Operation::gamma, {1000003, cols, Dtype::float32});
  }
}

TEST_CASE("B068 the last column counts, however long the row", "[limits]") {
  for (const std::int64_t cols : {1024, 1025, 2048, 8192, 8193, 16384, 40000}) {
    at::Tensor x = at::zeros({3, cols}, options(at::kFloat));
    for (const std::int64_t row : {0, 1, 2}) x[row][cols - 1].fill_(row - 1.5);
    const at::Tensor gamma = at::full({cols}, 0.5, options(at::kFloat)),
                     dy = random({3, cols}, at::kFloat);
    check_kernels(x, gamma, dy, 1e-12);
    for (const rmsnorm_implementation* table : kernels()) {
      const double y = run(*table, x, gamma, dy, 1e-12).y[2][cols - 1].item<double>();
      CHECK(y == Approx(0.5 * std::sqrt(static_cast<double>(cols))).epsilon(1e-6));
    }
  }
}

TEST_CASE("B070 rows past a block's shared memory are right", "[limits]") {
  for (const std::int64_t cols : {8192, 12288, 16384, 24576, 32768, 65536, 131072}) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
      for (const Operation operation : kOperations) check_passes(operation, {2, cols, dtype});
    }
  }
  if (!test_device().is_cuda()) return;
  // Enough rows for the kernels that stage rows, at widths about every limit of theirs.
  for (const std::int64_t cols : {8192, 8200, 16384, 16392, 24577, 32768, 32776, 65544}) {
    check_passes(Operation::gamma, {600, cols, Dtype::float16});
    check_passes(Operation::backward, {600, cols, Dtype::float32});
  }
}

TEST_CASE("B072 rows without columns are refused, and the next call works", "[limits]") {
  for (const std::int64_t rows : {0, 1, 3}) {
    const at::Tensor x = at::empty({rows, 0}, options(at::kFloat)),
                     gamma = at::empty({0}, options(at::kFloat));
    CHECK_THROWS_AS(functional::rms_norm(x, gamma, 0.1), ContractError);
    CHECK_THROWS_AS(functional::rms_norm(x, at::IntArrayRef(x.sizes().slice(1))), ContractError);
  }
  const at::Tensor more = random({3, 8}, at::kFloat);
  check_kernels(more, random({8}, at::kFloat, 2), more);
}

TEST_CASE("B110 rows of a million columns are right", "[limits]") {
  for (const std::int64_t cols : {65536, 65537, 262144, 1048576}) {
    for (const Dtype dtype : {Dtype::float32, Dtype::float16}) {
      check_passes(Operation::forward, {2, cols, dtype});
    }
  }
  for (const Operation operation : kOperations) {
    check_passes(operation, {2, 1048577, Dtype::bfloat16});
  }
}

TEST_CASE("B118 sizes that no block divides stay inside their buffers", "[limits]") {
  for (const auto& [rows, cols] : {std::pair{3, 5}, {1, 1}, {7, 13}, {129, 257}}) {
    for (const Dtype dtype : kDtypes) {
      for (const Layout layout : {Layout::contiguous, Layout::offset, Layout::row_strided}) {
        for (const Operation operation : kOperations) {
          check_passes(operation, {rows, cols, dtype, layout});
        }
      }
    }
  }
}

}  // namespace
}  // namespace rmsnorm::test
