#include "kernels/cpu_tuned_support.hpp"

// `tuned` on the CPU, for every instruction set that this processor has, against loops in long
// double on the rounded inputs.

TEMPLATE_TEST_CASE("tuned on the CPU is right at every edge of its vectors, unrolls and pieces",
                   "[kernels][cpu]", EVERY_DTYPE_PAIR) {
  using T = typename TestType::first_type;
  using G = typename TestType::second_type;
  for (const std::int64_t cols : columns_at_every_edge()) {
    for (const std::int64_t rows : {1, 2, 3, 17, 129}) {
      if (rows * cols > 600000) continue;
      check(Problem<T, G>({rows, cols}));
    }
  }
  for (const std::int64_t cols : {1, 16, 63, 129, 1000})
    check(Problem<T, G>({5, cols}, GammaOf::none));
}

TEMPLATE_TEST_CASE("tuned on the CPU reads and writes at any address", "[kernels][cpu]",
                   EVERY_DTYPE_PAIR) {
  using T = typename TestType::first_type;
  using G = typename TestType::second_type;
  for (const std::int64_t shift : {1, 3, 7, 15}) {
    for (const std::int64_t cols : {1, 15, 16, 64, 257, 1024}) {
      const Shape shape{9, cols};
      check(
          Problem<T, G>(shape, dense(shape, shift), dense(shape, shift + 1), GammaOf::same, shift),
          shift);
    }
  }
}

TEMPLATE_TEST_CASE("tuned on the CPU reads strided rows where they lie", "[kernels][cpu]",
                   EVERY_DTYPE_PAIR) {
  using T = typename TestType::first_type;
  using G = typename TestType::second_type;
  for (const std::int64_t cols : {1, 17, 64, 130, 8200}) {
    const Shape shape{37, cols};
    const Placement strided{37, cols + 5, 37 * (cols + 5), 0};
    const Placement heads{4, cols, 4 * cols * 3 + 1, 1};
    const Placement backwards_blocks{5, 2 * cols + 1, 11 * cols + 7, 0};
    const Placement expanded{37, 0, 0, 0}, expanded_outer{4, cols, 0, 0};
    check(Problem<T, G>(shape, strided, heads, GammaOf::same));
    check(Problem<T, G>(shape, heads, expanded, GammaOf::same));
    check(Problem<T, G>(shape, backwards_blocks, expanded_outer, GammaOf::same));
  }
}

TEMPLATE_TEST_CASE("tuned on the CPU writes zero to dgamma of no rows and nothing else",
                   "[kernels][cpu]", EVERY_DTYPE_PAIR) {
  using T = typename TestType::first_type;
  using G = typename TestType::second_type;
  for (const std::int64_t cols : {1, 257, 8193, 262145}) {
    const Problem<T, G> problem({0, cols});
    for (const Supported& s : supported()) {
      CAPTURE(s.name, cols);
      Results<T, G> results(problem.shape);
      run_both(*s.table, problem, results);
      bool zero = true;
      for (std::int64_t c = 0; c < cols; ++c) zero = zero && wide(results.dgamma[c]) == 0;
      CHECK(zero);
      CHECK(results.guards_intact());
    }
  }
}

TEMPLATE_TEST_CASE("tuned on the CPU computes only what is asked for, to the same bits",
                   "[kernels][cpu]", EVERY_DTYPE_PAIR) {
  using T = typename TestType::first_type;
  using G = typename TestType::second_type;
  for (const Shape shape : {Shape{129, 257}, Shape{3, 8193}, Shape{2, 262145}}) {
    const Problem<T, G> problem(shape);
    for (const Supported& s : supported()) {
      CAPTURE(s.name, shape.rows, shape.cols);
      Results<T, G> both(shape), only_dx(shape), only_dgamma(shape);
      const Results<T, G> untouched(shape);
      run_forward(*s.table, problem, both);
      run_forward(*s.table, problem, only_dx);
      run_forward(*s.table, problem, only_dgamma);
      run_backward(*s.table, problem, both);
      run_backward(*s.table, problem, only_dx, true, false);
      run_backward(*s.table, problem, only_dgamma, false, true);
      CHECK(both.dx.same_bits(only_dx.dx));
      CHECK(both.dgamma.same_bits(only_dgamma.dgamma));
      CHECK(only_dx.dgamma.same_bits(untouched.dgamma));
      CHECK(only_dgamma.dx.same_bits(untouched.dx));
    }
  }
}

TEST_CASE("tuned on the CPU asks for scratch that is bounded and none for what nobody wants",
          "[kernels][cpu]") {
  float some = 0;
  for (const Supported& s : supported()) {
    for (const std::int64_t cols : {1, 128, 4096, 16384}) {
      for (const std::int64_t rows : {1, 100, 10000, 100000000}) {
        for (const std::int32_t dtype : {RMSNORM_FLOAT64, RMSNORM_FLOAT32, RMSNORM_BFLOAT16}) {
          CAPTURE(s.name, rows, cols, dtype);
          rmsnorm_backward_args args{};
          args.rows = rows;
          args.cols = cols;
          args.x.dtype = args.gamma_dtype = dtype;
          args.dx = args.dgamma = &some;
          const std::size_t bytes = s.table->backward_workspace_bytes(&args);
          CHECK(bytes > 0);
          CHECK(bytes <= 8000000);
          args.workspace_bytes = bytes - 1;
          CHECK(s.table->backward(&args) == RMSNORM_WORKSPACE);
          args.dgamma = nullptr;
          CHECK(s.table->backward_workspace_bytes(&args) <= 1 << 14);
          args.dx = nullptr;
          CHECK(s.table->backward_workspace_bytes(&args) == 0);
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("tuned on the CPU gives the same bits on any number of threads and in any run",
                   "[kernels][cpu]", EVERY_DTYPE_PAIR) {
  using T = typename TestType::first_type;
  using G = typename TestType::second_type;
  for (const Shape shape :
       {Shape{1000, 129}, Shape{300, 1024}, Shape{5, 16385}, Shape{1, 262145}, Shape{3, 300000}}) {
    const Problem<T, G> problem(shape);
    for (const Supported& s : supported()) {
      Results<T, G> alone(shape);
      run_both(*s.table, problem, alone);
      for (const int threads : {1, 2, 8}) {
        CAPTURE(s.name, shape.rows, shape.cols, threads);
        run_threads = threads;
        const rmsnorm_executor executor{threads, run_on_threads};
        Results<T, G> results(shape);
        run_both(*s.table, problem, results, &executor);
        CHECK(results.y.same_bits(alone.y));
        CHECK(results.rstd.same_bits(alone.rstd));
        CHECK(results.dx.same_bits(alone.dx));
        CHECK(results.dgamma.same_bits(alone.dgamma));
      }
    }
  }
}

TEST_CASE("tuned on the CPU gives the same gradients 100 times", "[kernels][cpu]") {
  const Shape shape{129, 513};
  const Problem<Bfloat16, float> problem(shape);
  run_threads = 8;
  const rmsnorm_executor executor{8, run_on_threads};
  for (const Supported& s : supported()) {
    Results<Bfloat16, float> first(shape);
    run_both(*s.table, problem, first, &executor);
    bool same = true;
    for (int run = 0; run < 100; ++run) {
      Results<Bfloat16, float> again(shape);
      run_both(*s.table, problem, again, &executor);
      same = same && again.dx.same_bits(first.dx) && again.dgamma.same_bits(first.dgamma);
    }
    CAPTURE(s.name);
    CHECK(same);
  }
}

TEMPLATE_TEST_CASE("a row has the same bits alone, at any address and among any others",
                   "[kernels][cpu]", EVERY_DTYPE_PAIR) {
  using T = typename TestType::first_type;
  using G = typename TestType::second_type;
  run_threads = 8;
  const rmsnorm_executor executor{8, run_on_threads};
  for (const Shape shape : {Shape{200, 130}, Shape{100, 1024}, Shape{40, 8195}, Shape{9, 66000}}) {
    const Problem<T, G> many(shape);
    for (const Supported& s : supported()) {
      Results<T, G> all(shape);
      run_forward(*s.table, many, all, &executor);
      for (const std::int64_t m : {std::int64_t(0), shape.rows / 2, shape.rows - 1}) {
        for (const std::int64_t shift : {0, 1}) {
          CAPTURE(s.name, shape.rows, shape.cols, m, shift);
          const Shape one{1, shape.cols};
          Problem<T, G> single(one, dense(one, shift), dense(one), GammaOf::same);
          std::copy_n(many.x.data() + m * shape.cols, shape.cols, single.x.data());
          std::copy_n(many.gamma.data(), shape.cols, single.gamma.data());
          Results<T, G> alone(one, shift);
          run_forward(*s.table, single, alone, &executor);
          const std::size_t bytes = static_cast<std::size_t>(shape.cols) * sizeof(T);
          CHECK(std::memcmp(alone.y.data(), all.y.data() + m * shape.cols, bytes) == 0);
          CHECK(std::memcmp(alone.rstd.data(), all.rstd.data() + m, sizeof(alone.rstd[0])) == 0);
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("tuned on the CPU writes the same bits past the caches as through them",
                   "[kernels][cpu]", EVERY_DTYPE_PAIR) {
  using T = typename TestType::first_type;
  using G = typename TestType::second_type;
  const std::int64_t cols = 4096 + 64;
  const Shape shape{(std::int64_t(25) << 20) / cols / static_cast<std::int64_t>(sizeof(T)), cols};
  Problem<T, G> problem(shape);
  Results<T, G> streamed(shape), stored(shape, 1);
  REQUIRE(stream_outputs(streamed.y.data(), shape.rows, cols, sizeof(T), 2));
  REQUIRE(!stream_outputs(stored.y.data(), shape.rows, cols, sizeof(T), 2));
  run_threads = 2;
  const rmsnorm_executor executor{2, run_on_threads};
  for (const Supported& s : supported()) {
    CAPTURE(s.name);
    for (auto* results : {&streamed, &stored}) {
      run_both(*s.table, problem, *results, &executor);
      CHECK(results->guards_intact());
    }
    CHECK(streamed.y.same_bits(stored.y));
    CHECK(streamed.dx.same_bits(stored.dx));
    CHECK(streamed.dgamma.same_bits(stored.dgamma));
  }
}

TEMPLATE_TEST_CASE("tuned on the CPU keeps NaN and infinities in their row", "[kernels][cpu]",
                   EVERY_DTYPE_PAIR) {
  using T = typename TestType::first_type;
  using G = typename TestType::second_type;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double special : {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const std::int64_t cols : {5, 64, 131}) {
      const Shape shape{9, cols};
      Problem<T, G> clean(shape), dirty(shape);
      dirty.x[4 * cols + 2] = from_double<T>(special);
      for (const Supported& s : supported()) {
        CAPTURE(s.name, cols, special);
        Results<T, G> want(shape), got(shape);
        run_both(*s.table, clean, want);
        run_both(*s.table, dirty, got);
        CHECK(std::isnan(wide(got.y[4 * cols + 2])));
        CHECK(std::isnan(wide(got.dx[4 * cols + 2])));
        for (std::int64_t m = 0; m < shape.rows; ++m) {
          if (m == 4) continue;
          const std::size_t bytes = static_cast<std::size_t>(cols) * sizeof(T);
          CHECK(std::memcmp(got.y.data() + m * cols, want.y.data() + m * cols, bytes) == 0);
          CHECK(std::memcmp(got.dx.data() + m * cols, want.dx.data() + m * cols, bytes) == 0);
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("tuned on the CPU keeps a NaN whatever its bits are", "[kernels][cpu]", Half,
                   Bfloat16) {
  using T = TestType;
  // Rounded as a number, a float32 whose last bits are all ones becomes zero.
  for (const std::uint32_t bits :
       {0x7FFFFFFFu, 0xFFFFFFFFu, 0x7FFF8000u, 0x7FC00000u, 0xFFC0FFFFu, 0x7F800001u}) {
    const float nan = std::bit_cast<float>(bits);
    for (const std::int64_t cols : {1, 16, 37}) {
      const Shape shape{3, cols};
      Problem<T, float> gamma_nan(shape), finite(shape);
      for (std::int64_t c = 0; c < cols; ++c) std::memcpy(&gamma_nan.gamma[c], &nan, sizeof nan);
      for (const Supported& s : supported()) {
        CAPTURE(s.name, bits, cols);
        Results<T, float> of_gamma(shape), of_rstd(shape);
        run_both(*s.table, gamma_nan, of_gamma);
        run_forward(*s.table, finite, of_rstd);
        std::memcpy(&of_rstd.rstd[1], &nan, sizeof nan);
        run_backward(*s.table, finite, of_rstd);
        std::int64_t hidden = 0;
        for (std::int64_t c = 0; c < cols; ++c) {
          hidden += !std::isnan(wide(of_gamma.y[c])) + !std::isnan(wide(of_gamma.dx[c]));
          hidden += !std::isnan(wide(of_rstd.dx[cols + c])) + !std::isnan(wide(of_rstd.dgamma[c]));
        }
        CHECK(hidden == 0);
      }
    }
  }
}

TEST_CASE("tuned on the CPU does not overflow on rows of the largest float16", "[kernels][cpu]") {
  const Shape shape{3, 4099};
  Problem<Half, Half> problem(shape);
  for (std::int64_t i = 0; i < shape.rows * shape.cols; ++i)
    problem.x[i] = from_double<Half>(i % 2 == 0 ? 65504.0 : -65504.0);
  check(problem);
}

TEMPLATE_TEST_CASE("tuned on the CPU rounds once, to nearest, ties to even, denormals kept",
                   "[kernels][cpu]", Half, Bfloat16) {
  using T = TestType;
  // Every pattern of 16 bits as gamma over x = 1 with eps that leaves rstd exactly 1: y is gamma.
  // Then gamma of float32 on every tie and beside it.
  const std::int64_t cols = 1 << 16;
  for (const Supported& s : supported()) {
    for (const int offset : {-1, 0, 1}) {
      CAPTURE(s.name, offset);
      Problem<T, float> problem({1, cols});
      problem.eps = 1e-12;
      for (std::int64_t c = 0; c < cols; ++c) {
        problem.x[c] = from_double<T>(1);
        T low{static_cast<std::uint16_t>(c)}, high{static_cast<std::uint16_t>(c + 1)};
        float gamma = widen(low);
        if (std::isfinite(gamma) && std::isfinite(widen(high))) {
          gamma = static_cast<float>(
              (static_cast<double>(gamma) + static_cast<double>(widen(high))) / 2);
          if (offset != 0) gamma = std::nextafter(gamma, offset < 0 ? -HUGE_VALF : HUGE_VALF);
        }
        problem.gamma[c] = gamma;
      }
      Results<T, float> results({1, cols});
      run_forward(*s.table, problem, results);
      REQUIRE(results.rstd[0] == 1.0f);
      std::int64_t different = 0;
      for (std::int64_t c = 0; c < cols; ++c) {
        T want;
        narrow(problem.gamma[c], want);
        const bool both_nan = std::isnan(widen(want)) && std::isnan(widen(results.y[c]));
        different += !both_nan && want.bits != results.y[c].bits;
      }
      CHECK(different == 0);
    }
  }
}

TEST_CASE("tuned on the CPU has the same bits with AVX2 and AVX-512", "[kernels][cpu]") {
  const auto *avx2 = tuned_table(Isa::avx2), *avx512 = tuned_table(Isa::avx512);
  if (avx2 == nullptr || avx512 == nullptr) return;
  for (const Shape shape : {Shape{17, 1}, Shape{33, 77}, Shape{129, 1000}, Shape{2, 70001}}) {
    const Problem<float, float> problem(shape);
    Results<float, float> a(shape), b(shape);
    run_both(*avx2, problem, a);
    run_both(*avx512, problem, b);
    CAPTURE(shape.rows, shape.cols);
    CHECK(a.y.same_bits(b.y));
    CHECK(a.dx.same_bits(b.dx));
    CHECK(a.dgamma.same_bits(b.dgamma));
  }
}

TEST_CASE("the table of tuned is the one with the widest vectors that this processor has",
          "[kernels][cpu]") {
  const std::vector<Supported> all = supported();
  REQUIRE(!all.empty());
  CHECK(all.front().isa == Isa::generic);
  CHECK(rmsnorm_tuned_cpu() == all.back().table);
  for (const Supported& s : all) {
    CAPTURE(s.name);
    CHECK(s.table->abi_version == RMSNORM_ABI_VERSION);
    CHECK(s.table->device_type == RMSNORM_CPU);
    CHECK(std::string(s.table->name) == "tuned");
  }
}
