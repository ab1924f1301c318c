#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "kernels/common/arguments.hpp"
#include "kernels/common/fault.hpp"
#include "kernels/cpu/dtype.hpp"
#include "kernels/cpu/tasks.hpp"

// The readable implementation on the CPU: one row at a time; backward leaves dy*x*rstd of every row
// in the workspace and a second pass sums its columns. No vector intrinsics: `kLanes` independent
// sums per row, in an order fixed by the code alone, are what the compiler needs to use vector
// registers without reordering any sum.

namespace rmsnorm::kernels::cpu {

constexpr std::int64_t kLanes = 32;
constexpr std::int64_t kElementsPerTask = 1 << 15;  // enough work to be worth a thread's wake-up
constexpr std::int64_t kColumnsPerTask = 64;

/// sum over c in [0, count) of term(c), as `kLanes` interleaved sums that are then added pairwise.
template <class A, class Term>
A sum_in_lanes(std::int64_t count, Term term) {
  std::array<A, kLanes> lanes{};
  std::int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(c + lane);
  }
  for (std::int64_t lane = 0; c + lane < count; ++lane) lanes[lane] += term(c + lane);
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

/// gamma[c], or one where there is no gamma.
template <class A, class G>
struct Gamma {
  const G* data;
  A operator[](std::int64_t c) const {
    return data == nullptr ? A(1) : static_cast<A>(widen(data[c]));
  }
};

template <class T, class G, Fault F>
void forward_rows(const rmsnorm_forward_args& args, std::int64_t begin, std::int64_t end) {
  using A = accumulation_t<T>;
  const Rows<T> x_rows(args.x);
  const Gamma<A, G> gamma{static_cast<const G*>(args.gamma)};
  const std::int64_t cols = args.cols;
  for (std::int64_t m = begin; m < end; ++m) {
    const T* x = x_rows.row(m);
    T* y = static_cast<T*>(args.y) + m * cols;
    const A square_sum = sum_in_lanes<A>(cols, [&](std::int64_t c) {
      const A value = widen(x[c]);
      return value * value;
    });
    const A rstd = A(1) / std::sqrt(square_sum / static_cast<A>(cols) + static_cast<A>(args.eps));
    for (std::int64_t c = 0; c < cols; ++c) narrow(widen(x[c]) * rstd * gamma[c], y[c]);
    if (args.rstd != nullptr) static_cast<A*>(args.rstd)[m] = rstd;
  }
}

/// dx of the rows, and their addends of dgamma into partials[m, :]; either may be NULL.
template <class T, class G, Fault F>
void backward_rows(const rmsnorm_backward_args& args, std::int64_t begin, std::int64_t end) {
  using A = accumulation_t<T>;
  const Rows<T> x_rows(args.x), dy_rows(args.dy);
  const Gamma<A, G> gamma{static_cast<const G*>(args.gamma)};
  const std::int64_t cols = args.cols;
  for (std::int64_t m = begin; m < end; ++m) {
    const T* x = x_rows.row(m);
    const T* dy = dy_rows.row(m);
    const A rstd = static_cast<const A*>(args.rstd)[m];
    if (args.dx != nullptr) {
      T* dx = static_cast<T*>(args.dx) + m * cols;
      const A dot = sum_in_lanes<A>(
          cols, [&](std::int64_t c) { return widen(dy[c]) * gamma[c] * widen(x[c]); });
      // rstd * (u - x_hat * mean(u * x_hat)) is rstd*u - x*rstd^3*mean(u*x) with no factor that can
      // overflow alone.
      const A projection = rstd * (dot * rstd / static_cast<A>(cols));
      for (std::int64_t c = 0; c < cols; ++c) {
        narrow(rstd * (widen(dy[c]) * gamma[c] - widen(x[c]) * projection), dx[c]);
      }
    }
    if (args.dgamma != nullptr) {
      A* partial = static_cast<A*>(args.workspace) + m * cols;
      for (std::int64_t c = 0; c < cols; ++c) partial[c] = widen(dy[c]) * (widen(x[c]) * rstd);
    }
  }
}

/// dgamma[c] = sum over m of partials[m, c], for c in [begin, end), top to bottom in strips of
/// `kLanes` rows so that the error grows with the number of strips, not of rows.
template <class T, class G, Fault F>
void sum_partials(const rmsnorm_backward_args& args, std::int64_t begin, std::int64_t end) {
  using A = accumulation_t<T>;
  const A* partials = static_cast<const A*>(args.workspace);
  std::array<A, kColumnsPerTask> total{};
  for (std::int64_t strip = 0; strip < args.rows; strip += kLanes) {
    std::array<A, kColumnsPerTask> sum{};
    for (std::int64_t m = strip; m < std::min(args.rows, strip + kLanes); ++m) {
      for (std::int64_t c = begin; c < end; ++c) sum[c - begin] += partials[m * args.cols + c];
    }
    for (std::int64_t c = begin; c < end; ++c) total[c - begin] += sum[c - begin];
  }
  G* dgamma = static_cast<G*>(args.dgamma);
  for (std::int64_t c = begin; c < end; ++c) narrow(total[c - begin], dgamma[c]);
}

inline std::int64_t rows_per_task(std::int64_t cols) {
  return std::max<std::int64_t>(1, kElementsPerTask / cols);
}

template <class T, class G, Fault F = Fault::none>
std::int32_t rowwise_forward(const rmsnorm_forward_args& args) {
  for_each_range(
      args.executor, args.rows, rows_per_task(args.cols),
      [&](std::int64_t begin, std::int64_t end) { forward_rows<T, G, F>(args, begin, end); });
  return RMSNORM_OK;
}

template <class T, class G, Fault F = Fault::none>
std::int32_t rowwise_backward(const rmsnorm_backward_args& args) {
  if (args.workspace_bytes < row_partials_bytes(args)) return RMSNORM_WORKSPACE;
  for_each_range(
      args.executor, args.rows, rows_per_task(args.cols),
      [&](std::int64_t begin, std::int64_t end) { backward_rows<T, G, F>(args, begin, end); });
  if (args.dgamma == nullptr) return RMSNORM_OK;
  for_each_range(
      args.executor, args.cols, kColumnsPerTask,
      [&](std::int64_t begin, std::int64_t end) { sum_partials<T, G, F>(args, begin, end); });
  return RMSNORM_OK;
}

}  // namespace rmsnorm::kernels::cpu
