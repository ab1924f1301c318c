#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "kernels/cpu/dtype.hpp"
#include "kernels/cpu/tuned.hpp"
#include "kernels/implementations.h"
#include "support/catch.hpp"

// Problems, their runs on `tuned` for the CPU, and the right results as loops in long double on the
// rounded inputs. For one test file: everything has internal linkage.

namespace {

using namespace rmsnorm::kernels::cpu;

struct Supported {
  Isa isa;
  std::string name;
  const rmsnorm_implementation* table;
};

std::vector<Supported> supported() {
  std::vector<Supported> result;
  const char* names[] = {"generic", "avx2", "avx512"};
  for (const Isa isa : kIsas) {
    if (const auto* table = tuned_table(isa))
      result.push_back({isa, names[static_cast<int>(isa)], table});
  }
  return result;
}

int run_threads = 2;
void run_on_threads(std::int64_t tasks, void (*task)(void*, std::int64_t), void* state) {
  std::atomic<std::int64_t> next{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < run_threads; ++t) {
    threads.emplace_back([&] {
      for (std::int64_t i = next++; i < tasks; i = next++) task(state, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::int32_t dtype_of(const double*) {
  return RMSNORM_FLOAT64;
}
std::int32_t dtype_of(const float*) {
  return RMSNORM_FLOAT32;
}
std::int32_t dtype_of(const Half*) {
  return RMSNORM_FLOAT16;
}
std::int32_t dtype_of(const Bfloat16*) {
  return RMSNORM_BFLOAT16;
}

template <class T>
T from_double(double value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    T result;
    narrow(static_cast<float>(value), result);
    return result;
  }
}
template <class T>
long double wide(T value) {
  return static_cast<long double>(widen(value));
}

/// Half a unit in the last place of T, relative.
template <class T>
long double unit_roundoff() {
  if (std::is_same_v<T, double>) return 0x1p-53L;
  if (std::is_same_v<T, float>) return 0x1p-24L;
  return std::is_same_v<T, Half> ? 0x1p-11L : 0x1p-8L;
}

template <class T>
long double smallest_denormal() {
  if (std::is_same_v<T, double>) return 0x1p-1074L;
  if (std::is_same_v<T, Half>) return 0x1p-24L;
  return std::is_same_v<T, float> ? 0x1p-149L : 0x1p-133L;
}

/// What an element may be off by: its own rounding, and the sums' relative to the largest term.
template <class T>
long double allowed(long double want, long double scale) {
  const long double sum =
      unit_roundoff<std::conditional_t<std::is_same_v<T, double>, double, float>>();
  return 1.01L * unit_roundoff<T>() * std::fabs(want) + 64 * sum * scale + smallest_denormal<T>();
}

constexpr std::size_t kGuard = 96;
constexpr unsigned char kPoison = 0xA5;

/// Memory of `count` elements, `shift` elements past an aligned address, between guard bytes.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::int64_t count, std::int64_t shift = 0)
      : bytes_(static_cast<std::size_t>(count) * sizeof(T)),
        storage_(bytes_ + 3 * kGuard + static_cast<std::size_t>(shift) * sizeof(T) + 64, kPoison) {
    auto address = reinterpret_cast<std::uintptr_t>(storage_.data() + kGuard);
    address = (address + 63) / 64 * 64 + static_cast<std::size_t>(shift) * sizeof(T);
    data_ = reinterpret_cast<T*>(address);
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](std::int64_t i) { return data_[i]; }
  const T& operator[](std::int64_t i) const { return data_[i]; }
  bool guards_intact() const {
    const auto* begin = reinterpret_cast<const unsigned char*>(data_);
    return std::all_of(begin - kGuard, begin, [](unsigned char b) { return b == kPoison; }) &&
           std::all_of(begin + bytes_, begin + bytes_ + kGuard,
                       [](unsigned char b) { return b == kPoison; });
  }
  bool same_bits(const Buffer& other) const {
    return bytes_ == other.bytes_ && (bytes_ == 0 || std::memcmp(data_, other.data_, bytes_) == 0);
  }

 private:
  std::size_t bytes_;
  std::vector<unsigned char> storage_;
  T* data_;
};

struct Shape {
  std::int64_t rows, cols;
};

/// Where rows lie: as in rmsnorm_rows; `shift` elements past alignment.
struct Placement {
  std::int64_t inner_rows, inner_stride, outer_stride, shift;
  std::int64_t row(std::int64_t m) const {
    return m / inner_rows * outer_stride + m % inner_rows * inner_stride;
  }
  std::int64_t extent(const Shape& shape) const {
    std::int64_t end = shape.cols;
    for (std::int64_t m = 0; m < shape.rows; ++m) end = std::max(end, row(m) + shape.cols);
    return end;
  }
};
Placement dense(const Shape& shape, std::int64_t shift = 0) {
  return {std::max<std::int64_t>(shape.rows, 1), shape.cols,
          std::max<std::int64_t>(shape.rows, 1) * shape.cols, shift};
}

enum class GammaOf { same, none };

template <class T, class G>
struct Problem {
  using A = accumulation_t<T>;
  Shape shape;
  Placement x_place, dy_place;
  bool has_gamma;
  Buffer<T> x, dy;
  Buffer<G> gamma;
  double eps = 1e-6;

  Problem(Shape shape_, Placement x_place_, Placement dy_place_, GammaOf gamma_of,
          std::int64_t gamma_shift = 0)
      : shape(shape_),
        x_place(x_place_),
        dy_place(dy_place_),
        has_gamma(gamma_of == GammaOf::same),
        x(x_place.extent(shape), x_place.shift),
        dy(dy_place.extent(shape), dy_place.shift),
        gamma(shape.cols, gamma_shift) {
    std::mt19937 generator(static_cast<unsigned>(shape.rows * 7919 + shape.cols));
    std::normal_distribution<double> normal;
    // What lies between rows must not be read as part of one.
    const std::int64_t x_end = x_place.extent(shape), dy_end = dy_place.extent(shape);
    for (std::int64_t i = 0; i < x_end; ++i)
      x[i] = from_double<T>(std::numeric_limits<double>::quiet_NaN());
    for (std::int64_t m = 0; m < shape.rows; ++m) {
      for (std::int64_t c = 0; c < shape.cols; ++c)
        x[x_place.row(m) + c] = from_double<T>(normal(generator));
    }
    for (std::int64_t i = 0; i < dy_end; ++i) dy[i] = from_double<T>(0.5 + normal(generator));
    for (std::int64_t c = 0; c < shape.cols; ++c) gamma[c] = from_double<G>(normal(generator));
  }
  explicit Problem(Shape shape_, GammaOf gamma_of = GammaOf::same)
      : Problem(shape_, dense(shape_), dense(shape_), gamma_of) {}

  template <class Args>
  void fill(Args& args, const rmsnorm_executor* executor) const {
    args.rows = shape.rows;
    args.cols = shape.cols;
    args.x = rows_of(x, x_place);
    args.gamma = has_gamma ? gamma.data() : nullptr;
    args.gamma_dtype = has_gamma ? dtype_of(static_cast<const G*>(nullptr)) : RMSNORM_NO_DTYPE;
    args.eps = eps;
    args.executor = executor;
  }
  rmsnorm_rows rows_of(const Buffer<T>& buffer, const Placement& place) const {
    return {buffer.data(), place.inner_rows, place.inner_stride, place.outer_stride,
            dtype_of(static_cast<const T*>(nullptr))};
  }
  long double x_at(std::int64_t m, std::int64_t c) const { return wide(x[x_place.row(m) + c]); }
  long double dy_at(std::int64_t m, std::int64_t c) const { return wide(dy[dy_place.row(m) + c]); }
  long double gamma_at(std::int64_t c) const { return has_gamma ? wide(gamma[c]) : 1.0L; }
};

template <class T, class G>
struct Results {
  using A = accumulation_t<T>;
  Buffer<T> y, dx;
  Buffer<G> dgamma;
  Buffer<A> rstd;
  explicit Results(const Shape& shape, std::int64_t shift = 0)
      : y(shape.rows * shape.cols, shift),
        dx(shape.rows * shape.cols, shift),
        dgamma(shape.cols, shift),
        rstd(shape.rows, shift) {}
  bool guards_intact() const {
    return y.guards_intact() && dx.guards_intact() && dgamma.guards_intact() &&
           rstd.guards_intact();
  }
};

template <class T, class G>
void run_forward(const rmsnorm_implementation& table, const Problem<T, G>& problem,
                 Results<T, G>& results, const rmsnorm_executor* executor = nullptr) {
  rmsnorm_forward_args args{};
  problem.fill(args, executor);
  args.y = results.y.data();
  args.rstd = results.rstd.data();
  REQUIRE(table.forward_refusal(&args) == nullptr);
  REQUIRE(table.forward(&args) == RMSNORM_OK);
}

template <class T, class G>
void run_backward(const rmsnorm_implementation& table, const Problem<T, G>& problem,
                  Results<T, G>& results, bool want_dx = true, bool want_dgamma = true,
                  const rmsnorm_executor* executor = nullptr) {
  rmsnorm_backward_args args{};
  problem.fill(args, executor);
  args.dy = problem.rows_of(problem.dy, problem.dy_place);
  args.rstd = results.rstd.data();
  args.dx = want_dx ? results.dx.data() : nullptr;
  args.dgamma = want_dgamma && problem.has_gamma ? results.dgamma.data() : nullptr;
  args.workspace_bytes = table.backward_workspace_bytes(&args);
  Buffer<unsigned char> workspace(static_cast<std::int64_t>(args.workspace_bytes));
  args.workspace = workspace.data();
  REQUIRE(table.backward(&args) == RMSNORM_OK);
  REQUIRE(workspace.guards_intact());
}

/// Forward, and backward with the rstd that it left.
template <class T, class G>
void run_both(const rmsnorm_implementation& table, const Problem<T, G>& problem,
              Results<T, G>& results, const rmsnorm_executor* executor = nullptr) {
  run_forward(table, problem, results, executor);
  run_backward(table, problem, results, true, true, executor);
}

/// The first wrong element, as text; empty when all are right.
template <class T, class G>
std::string first_error(const Problem<T, G>& problem, const Results<T, G>& results) {
  const auto [rows, cols] = problem.shape;
  std::vector<long double> dgamma(static_cast<std::size_t>(cols)), scale(dgamma);
  const auto wrong = [](const char* what, std::int64_t m, std::int64_t c, long double got,
                        long double want) {
    return std::string(what) + "[" + std::to_string(m) + "," + std::to_string(c) + "] is " +
           std::to_string(got) + ", should be " + std::to_string(want);
  };
  for (std::int64_t m = 0; m < rows; ++m) {
    long double squares = 0, dot = 0, size = 0;
    for (std::int64_t c = 0; c < cols; ++c) {
      const long double x = problem.x_at(m, c), u = problem.dy_at(m, c) * problem.gamma_at(c);
      squares += x * x;
      dot += u * x;
      size += std::fabs(u * x);
    }
    const long double rstd = 1 / std::sqrt(squares / cols + problem.eps);
    for (std::int64_t c = 0; c < cols; ++c) {
      const long double x = problem.x_at(m, c), dy = problem.dy_at(m, c);
      const long double u = dy * problem.gamma_at(c);
      const long double y = x * rstd * problem.gamma_at(c);
      const long double got_y = wide(results.y[m * cols + c]);
      if (!(std::fabs(got_y - y) <= allowed<T>(y, std::fabs(y)))) return wrong("y", m, c, got_y, y);
      const long double direct = rstd * u, projected = x * rstd * rstd * rstd * dot / cols;
      const long double dx = direct - projected, got_dx = wide(results.dx[m * cols + c]);
      const long double dx_scale = std::fabs(direct) + std::fabs(projected) +
                                   std::fabs(x) * rstd * rstd * rstd * size / cols;
      if (!(std::fabs(got_dx - dx) <= allowed<T>(dx, dx_scale)))
        return wrong("dx", m, c, got_dx, dx);
      dgamma[static_cast<std::size_t>(c)] += dy * x * rstd;
      scale[static_cast<std::size_t>(c)] += std::fabs(dy * x * rstd);
    }
  }
  if (!problem.has_gamma) return {};
  for (std::int64_t c = 0; c < cols; ++c) {
    const long double want = dgamma[static_cast<std::size_t>(c)], got = wide(results.dgamma[c]);
    if (!(std::fabs(got - want) <= allowed<G>(want, scale[static_cast<std::size_t>(c)])))
      return wrong("dgamma", 0, c, got, want);
  }
  return {};
}

template <class T, class G>
void check(const Problem<T, G>& problem, std::int64_t shift = 0) {
  rmsnorm_executor executor{2, run_on_threads};
  run_threads = 2;
  for (const Supported& s : supported()) {
    CAPTURE(s.name, problem.shape.rows, problem.shape.cols, problem.has_gamma, shift,
            problem.x_place.inner_stride, problem.dy_place.inner_stride);
    Results<T, G> results(problem.shape, shift);
    run_both(*s.table, problem, results, &executor);
    CHECK(first_error(problem, results) == "");
    CHECK(results.guards_intact());
  }
}

std::vector<std::int64_t> columns_at_every_edge() {
  std::vector<std::int64_t> cols;
  for (std::int64_t c = 1; c <= 70; ++c) cols.push_back(c);
  for (const std::int64_t c : {127,  128,  129,  130,  255,  256,  257,  1000,  1024,   1025,  2048,
                               2049, 4095, 4096, 4097, 8191, 8192, 8193, 65537, 262143, 262145})
    cols.push_back(c);
  return cols;
}

#define EVERY_DTYPE_PAIR                                                           \
  (std::pair<double, double>), (std::pair<float, float>), (std::pair<Half, Half>), \
      (std::pair<Half, float>), (std::pair<Bfloat16, Bfloat16>), (std::pair<Bfloat16, float>)

}  // namespace
