#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>

#include "kernels/common/arguments.hpp"
#include "kernels/common/fault.hpp"
#include "kernels/common/steps.hpp"
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

/// sum over c in [0, count) of term(c), as `kLanes` interleaved sums that are then added pairwise;
/// add(sum, addend) adds.
template <class A, class Term, class Add = std::plus<A>>
A sum_in_lanes(std::int64_t count, Term term, Add add = {}) {
  std::array<A, kLanes> lanes{};
  std::int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] = add(lanes[lane], term(c + lane));
  }
  for (std::int64_t lane = 0; c + lane < count; ++lane)
    lanes[lane] = add(lanes[lane], term(c + lane));
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane)
      lanes[lane] = add(lanes[lane], lanes[lane + half]);
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
  /// The forward's reading of gamma beside an x of type T.
  template <Fault F, class T>
  A beside(std::int64_t c) const {
    if constexpr (F == Fault::gamma_read_as_x)
      return data == nullptr ? A(1) : static_cast<A>(widen(reinterpret_cast<const T*>(data)[c]));
    return (*this)[c];
  }
};

/// The sum of squares of a row, about `mean`.
template <Fault F, class T>
accumulation_t<T> sum_of_squares(const T* x, std::int64_t rows, std::int64_t cols,
                                 accumulation_t<T> mean) {
  using A = accumulation_t<T>;
  const RoundTo<T> round;
  const auto term = [&](std::int64_t c) {
    return square<F>(static_cast<A>(widen(x[c])), mean, round);
  };
  if constexpr (F == Fault::order_by_rows) {
    if (rows == 1) {
      A sum = 0;
      for (std::int64_t c = 0; c < cols; ++c) sum += term(c);
      return sum;
    }
  }
  return sum_in_lanes<A>(summed_cols<F>(cols), term,
                         [&](A sum, A addend) { return add_square<F>(sum, addend, round); });
}

template <class T, class G, Fault F>
void forward_rows(const rmsnorm_forward_args& args, std::int64_t begin, std::int64_t end) {
  using A = accumulation_t<T>;
  const Rows<T> x_rows(args.x);
  const Gamma<A, G> gamma{static_cast<const G*>(args.gamma)};
  const RoundTo<T> round;
  const std::int64_t cols = args.cols;
  const A eps = added_eps<F>(static_cast<A>(args.eps), kSpacingAtOne<T>);
  for (std::int64_t m = begin; m < std::min(end, forward_rows_taken<F>(args.rows)); ++m) {
    const T* x = x_row<F>(x_rows, m);
    T* y = static_cast<T*>(args.y) + row_offset<F>(m, cols);
    A mean = 0;
    if constexpr (F == Fault::mean_subtracted)
      mean =
          sum_in_lanes<A>(cols, [&](std::int64_t c) { return widen(x[c]); }) / static_cast<A>(cols);
    const A square_sum = sum_of_squares<F>(x, args.rows, cols, mean);
    const A rstd = inverse_rms<F>(square_sum, denominator<F>(args.rows, cols), eps);
    const T* x_scaled = x_row_scaled<F>(x_rows, m, cols);
    for (std::int64_t c = 0; c < stored_cols<F>(cols); ++c) {
      const A g = gamma.template beside<F, T>(gamma_index<F>(m, c, cols));
      A value = y_element<F>(static_cast<A>(widen(x_scaled[c])), rstd, g, round);
      if (is_spoiled<F>(m, c, args.rows, cols)) value = std::numeric_limits<A>::quiet_NaN();
      narrow(value, y[c]);
    }
    if constexpr (F == Fault::store_past_row) {
      for (std::int64_t c = cols; c < whole_vectors(cols + 3, 4); ++c) narrow(A(0), y[c]);
    }
    if (args.rstd != nullptr) static_cast<A*>(args.rstd)[m] = saved_rstd<F>(rstd, round);
  }
}

/// dx of the rows, and their addends of dgamma into partials[m, :]; either may be NULL.
template <class T, class G, Fault F>
void backward_rows(const rmsnorm_backward_args& args, std::int64_t begin, std::int64_t end) {
  using A = accumulation_t<T>;
  const Rows<T> x_rows(args.x), dy_rows(args.dy);
  const Gamma<A, G> gamma{static_cast<const G*>(args.gamma)};
  const std::int64_t cols = args.cols;
  const bool dx_wanted = args.dx != nullptr, dgamma_wanted = args.dgamma != nullptr;
  for (std::int64_t m = begin; m < end; ++m) {
    const T* x = x_row<F>(x_rows, m);
    const T* dy = dy_row<F>(dy_rows, x_rows, m);
    const A rstd = static_cast<const A*>(args.rstd)[rstd_row<F>(m)];
    T* dx = static_cast<T*>(args.dx) + (dx_wanted ? row_offset<F>(m, cols) : 0);
    if (computes_dx<F>(dx_wanted, dgamma_wanted)) {
      const A ux_sum = sum_in_lanes<A>(summed_cols_ux<F>(cols), [&](std::int64_t c) {
        return ux_element<F>(static_cast<A>(widen(dy[c])), gamma[c], static_cast<A>(widen(x[c])));
      });
      const A projection = projection_factor<F>(
          rstd, ux_sum * rstd / static_cast<A>(denominator_ux<F>(args.rows, cols)));
      for (std::int64_t c = 0; c < cols; ++c) {
        narrow(dx_element<F>(static_cast<A>(widen(dy[c])), static_cast<A>(widen(x[c])), gamma[c],
                             rstd, projection),
               dx[c]);
      }
    }
    if (computes_partials<F>(dx_wanted, dgamma_wanted) && m < partial_rows_written<F>(args.rows)) {
      A* partial = static_cast<A*>(args.workspace) + m * cols;
      for (std::int64_t c = 0; c < cols; ++c) {
        partial[c] = dgamma_addend<F>(static_cast<A>(widen(dy[c])), static_cast<A>(widen(x[c])),
                                      gamma[c], rstd);
      }
      if constexpr (F == Fault::scratch_overrun) {
        if (m == args.rows - 1) partial[cols] = A(0);
      }
    }
    if constexpr (F == Fault::dy_overwritten) {
      if (dx_wanted) std::copy(dx, dx + cols, const_cast<T*>(dy));
    }
  }
}

/// dgamma[c] = sum over m of partials[m, c], for c in [begin, end), top to bottom in strips of
/// `kLanes` rows so that the error grows with the number of strips, not of rows.
template <class T, class G, Fault F>
void sum_partials(const rmsnorm_backward_args& args, std::int64_t begin, std::int64_t end) {
  using A = accumulation_t<T>;
  if (!writes_dgamma<F>(args.rows)) return;
  const RoundTo<G> round;
  bool turned = false;
  if constexpr (F == Fault::dgamma_unordered) {
    static std::atomic<unsigned> calls{0};
    turned = calls++ % 2 == 1;
  }
  const A* partials = static_cast<const A*>(args.workspace);
  const std::int64_t rows = rows_summed<F>(args.rows);
  std::array<A, kColumnsPerTask> total{};
  for (std::int64_t strip = 0; strip < rows; strip += kLanes) {
    std::array<A, kColumnsPerTask> sum{};
    for (std::int64_t i = strip; i < std::min(rows, strip + kLanes); ++i) {
      const std::int64_t m = row_in_order<F>(i, rows, turned);
      for (std::int64_t c = begin; c < end; ++c) {
        A& s = sum[c - begin];
        s = add_partial<F>(s, partials[m * args.cols + c], m, round);
      }
    }
    for (std::int64_t c = begin; c < end; ++c) total[c - begin] += sum[c - begin];
  }
  G* dgamma = static_cast<G*>(args.dgamma);
  for (std::int64_t c = begin; c < end; ++c) {
    A before = 0;
    if constexpr (F == Fault::dgamma_accumulated) before = widen(dgamma[c]);
    narrow(dgamma_element<F>(total[c - begin], before, args.rows), dgamma[c]);
  }
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
