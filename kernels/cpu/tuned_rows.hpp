#include <cstdint>

#include "kernels/common/arguments.hpp"
#include "kernels/common/fault.hpp"
#include "kernels/cpu/dtype.hpp"
#include "kernels/cpu/tasks.hpp"
#include "kernels/cpu/tuned.hpp"

// The loops of `tuned` on the CPU, in the vectors of namespace RMSNORM_ISA (vector_*.hpp), which
// the including file defines. No include guard: each instruction set takes its own copy. See
// tuned.hpp for why nothing inline from elsewhere is called here.
//
// A sum over a row is taken in `kAccumulators` vectors whose lanes are then added pairwise; a row
// longer than a piece (row_pieces) is the sum of its pieces in order. Both follow from the columns
// and the instruction set alone.

namespace rmsnorm::kernels::cpu::RMSNORM_ISA {

template <class A>
constexpr std::int64_t kLanes = kVectorBytes / static_cast<int>(sizeof(A));

template <class T>
using vector_t = decltype(load(static_cast<const T*>(nullptr), All{}));

inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
inline float square_root(float value) {
  return __builtin_sqrtf(value);
}
inline double square_root(double value) {
  return __builtin_sqrt(value);
}

// The places where a small mistake makes a wrong kernel, each by its name.

/// What the sum over a row is divided by.
template <Fault F, class A>
A mean_divisor(std::int64_t cols) {
  return static_cast<A>(cols);
}

template <Fault F, class A>
A reciprocal_rms(A square_sum, std::int64_t cols, double eps) {
  return A(1) / square_root(square_sum / mean_divisor<F, A>(cols) + static_cast<A>(eps));
}

/// The lanes of the last vector that hold columns.
template <Fault F>
First tail_lanes(std::int64_t columns_left) {
  return First{columns_left};
}

template <Fault F, class Vector>
Vector normalized(Vector x, Vector rstd) {
  return x * rstd;
}

/// What multiplies x in dx: rstd * (u - x * projection) is rstd*u - x*rstd^3*mean(u*x) with no
/// factor that can overflow alone.
template <Fault F, class A>
A projection_factor(A dot, A rstd, std::int64_t cols) {
  return rstd * (dot * rstd / mean_divisor<F, A>(cols));
}

template <Fault F, class Vector>
Vector input_gradient(Vector u, Vector x, Vector rstd, Vector projection) {
  return rstd * fma(-x, projection, u);
}

/// dgamma's sum over rows with one more row.
template <Fault F, class Vector>
Vector add_gamma_gradient(Vector sum, Vector dy, Vector x, Vector rstd) {
  return fma(dy, normalized<F>(x, rstd), sum);
}

/// In the place of gamma's type where there is no gamma.
struct NoGamma {};

template <class T, class G>
struct Gamma {
  const G* data;
  struct Factor {
    vector_t<T> gamma;
    vector_t<T> times(vector_t<T> value) const { return value * gamma; }
  };
  template <class Lanes>
  Factor at(std::int64_t c, Lanes lanes) const {
    return {load(data + c, lanes)};
  }
};
template <class T>
struct Gamma<T, NoGamma> {
  const NoGamma* data;
  struct Factor {
    vector_t<T> times(vector_t<T> value) const { return value; }
  };
  template <class Lanes>
  Factor at(std::int64_t, Lanes) const {
    return {};
  }
};

/// Hands out one row after the other without a division for each.
template <class T>
class RowWalk {
 public:
  RowWalk(const rmsnorm_rows& rows, std::int64_t first)
      : rows_(rows),
        inner_(first % rows.inner_rows),
        block_(static_cast<const T*>(rows.data) + (first / rows.inner_rows) * rows.outer_stride) {}

  const T* next() {
    const T* row = block_ + inner_ * rows_.inner_stride;
    if (++inner_ == rows_.inner_rows) {
      inner_ = 0;
      block_ += rows_.outer_stride;
    }
    return row;
  }

 private:
  const rmsnorm_rows rows_;
  std::int64_t inner_;
  const T* block_;
};

// The loops below are fast only as one function with the bodies given to them: as calls, their
// vectors would go through memory.
#define RMSNORM_INLINE __attribute__((always_inline))

/// Runs body(c, lanes) for the vectors of A that cover columns [begin, end).
template <class A, Fault F, class Body>
RMSNORM_INLINE inline void for_each_vector(std::int64_t begin, std::int64_t end, Body body) {
  std::int64_t c = begin;
  for (; c + kLanes<A> <= end; c += kLanes<A>) body(c, All{});
  if (c < end) body(c, tail_lanes<F>(end - c));
}

/// The sum of term(c) over columns [begin, end): add(sum, c, lanes) adds a vector of terms.
template <class A, Fault F, class Add>
RMSNORM_INLINE inline A sum_of_columns(std::int64_t begin, std::int64_t end, Add add) {
  constexpr std::int64_t lanes = kLanes<A>;
  auto zero = broadcast(A(0));
  decltype(zero) sums[kAccumulators];
#pragma GCC unroll 8
  for (int i = 0; i < kAccumulators; ++i) sums[i] = zero;
  std::int64_t c = begin;
  for (; c + lanes * kAccumulators <= end; c += lanes * kAccumulators) {
#pragma GCC unroll 8
    for (int i = 0; i < kAccumulators; ++i) sums[i] = add(sums[i], c + i * lanes, All{});
  }
#pragma GCC unroll 8
  for (int i = 0; i < kAccumulators; ++i, c += lanes) {
    if (c + lanes <= end) {
      sums[i] = add(sums[i], c, All{});
    } else if (c < end) {
      sums[i] = add(sums[i], c, tail_lanes<F>(end - c));
    }
  }
#pragma GCC unroll 8
  for (int half = kAccumulators / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
  }
  return sum_lanes(sums[0]);
}

/// The sum over a row of what piece_sum(begin, end) gives for each of its pieces.
template <class A, class PieceSum>
RMSNORM_INLINE inline A sum_of_pieces(std::int64_t cols, const RowPieces& pieces,
                                      PieceSum piece_sum) {
  A sum = piece_sum(std::int64_t(0), smaller(pieces.cols, cols));
  for (std::int64_t begin = pieces.cols; begin < cols; begin += pieces.cols) {
    sum += piece_sum(begin, smaller(begin + pieces.cols, cols));
  }
  return sum;
}

/// Cuts [0, count) into ranges of `grain` and runs body(begin, end) for each.
template <class Body>
void for_each_piece(const rmsnorm_executor* executor, std::int64_t count, std::int64_t grain,
                    Body body) {
  auto task = [&](std::int64_t index) {
    body(index * grain, smaller(index * grain + grain, count));
  };
  for_each_task(executor, (count + grain - 1) / grain, task);
}

template <class T, Fault F>
accumulation_t<T> square_sum(const T* x, std::int64_t begin, std::int64_t end) {
  return sum_of_columns<accumulation_t<T>, F>(begin, end,
                                              [&](auto sum, auto c, auto lanes) RMSNORM_INLINE {
                                                const auto value = load(x + c, lanes);
                                                return fma(value, value, sum);
                                              });
}

template <bool streamed, class T, class Vector, class Lanes>
RMSNORM_INLINE inline void write(T* p, Vector value, Lanes lanes) {
  if constexpr (streamed) {
    stream(p, value, lanes);
  } else {
    store(p, value, lanes);
  }
}

/// Columns [begin, end) of y of R rows.
template <class T, class G, Fault F, int R, bool streamed>
void write_output(const T* const* x, const accumulation_t<T>* rstd, Gamma<T, G> gamma, T* const* y,
                  std::int64_t begin, std::int64_t end) {
  using A = accumulation_t<T>;
  vector_t<T> rstds[R];
  const T* xs[R];
  T* ys[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    rstds[r] = broadcast(rstd[r]);
    xs[r] = x[r];
    ys[r] = y[r];
  }
  for_each_vector<A, F>(begin, end, [&](auto c, auto lanes) RMSNORM_INLINE {
    const auto factor = gamma.at(c, lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto value = factor.times(normalized<F>(load(xs[r] + c, lanes), rstds[r]));
      write<streamed>(ys[r] + c, value, lanes);
    }
  });
}

constexpr std::int64_t kElementsPerTask = 1 << 15;
constexpr std::int64_t kElementsOfLongRow = 1 << 16;
constexpr std::int64_t kColumnsPerTask = 4096;

/// Rows that are worked on together, so that gamma is loaded once for them and the ends of their
/// sums overlap; the bits do not depend on it. More rows, or longer ones, evict each other from L1.
constexpr int kGroupRows = 2;
constexpr std::int64_t kGroupRowBytes = 4096;

template <class T, class G, Fault F>
class Forward {
  using A = accumulation_t<T>;

 public:
  explicit Forward(const rmsnorm_forward_args& args)
      : args_(args),
        cols_(args.cols),
        pieces_(row_pieces(args.cols)),
        gamma_{static_cast<const G*>(args.gamma)},
        streamed_(stream_outputs(args.y, args.rows, args.cols, sizeof(T), 2)),
        executor_(executor_for(args.executor, args.rows * args.cols)) {}

  std::int32_t run() const {
    if (executor_ != nullptr && args_.rows < executor_->threads && cols_ >= kElementsOfLongRow) {
      by_columns();
    } else {
      by_rows();
    }
    return RMSNORM_OK;
  }

 private:
  T* output(std::int64_t m) const { return static_cast<T*>(args_.y) + m * cols_; }

  A rstd_of_row(std::int64_t m, A sum) const {
    const A rstd = reciprocal_rms<F>(sum, cols_, args_.eps);
    if (args_.rstd != nullptr) static_cast<A*>(args_.rstd)[m] = rstd;
    return rstd;
  }

  template <int R>
  void row_group(RowWalk<T>& x_rows, std::int64_t m) const {
    const T* x[R];
    T* y[R];
    A rstd[R];
    for (int r = 0; r < R; ++r) {
      const T* row = x[r] = x_rows.next();
      y[r] = output(m + r);
      rstd[r] = rstd_of_row(m + r, sum_of_pieces<A>(cols_, pieces_, [&](auto begin, auto end) {
                              return square_sum<T, F>(row, begin, end);
                            }));
    }
    if (streamed_) {
      write_output<T, G, F, R, true>(x, rstd, gamma_, y, 0, cols_);
    } else {
      write_output<T, G, F, R, false>(x, rstd, gamma_, y, 0, cols_);
    }
  }

  void by_rows() const {
    const std::int64_t rows_per_task = cols_ < kElementsPerTask ? kElementsPerTask / cols_ : 1;
    const bool grouped = cols_ * static_cast<std::int64_t>(sizeof(T)) <= kGroupRowBytes;
    for_each_piece(executor_, args_.rows, rows_per_task, [&](std::int64_t begin, std::int64_t end) {
      RowWalk<T> x_rows(args_.x, begin);
      std::int64_t m = begin;
      for (; grouped && m + kGroupRows <= end; m += kGroupRows) row_group<kGroupRows>(x_rows, m);
      for (; m < end; ++m) row_group<1>(x_rows, m);
      if (streamed_) end_stream();
    });
  }

  /// Fewer long rows than threads: the threads share each row.
  void by_columns() const {
    RowWalk<T> x_rows(args_.x, 0);
    for (std::int64_t m = 0; m < args_.rows; ++m) {
      const T* x = x_rows.next();
      T* y = output(m);
      A sums[kMaxPieces];
      for_each_piece(executor_, cols_, pieces_.cols, [&](std::int64_t begin, std::int64_t end) {
        sums[begin / pieces_.cols] = square_sum<T, F>(x, begin, end);
      });
      const A rstd = rstd_of_row(m, sum_of_pieces<A>(cols_, pieces_, [&](auto begin, auto) {
                                   return sums[begin / pieces_.cols];
                                 }));
      for_each_piece(executor_, cols_, pieces_.cols, [&](std::int64_t begin, std::int64_t end) {
        write_output<T, G, F, 1, false>(&x, &rstd, gamma_, &y, begin, end);
      });
    }
  }

  const rmsnorm_forward_args& args_;
  const std::int64_t cols_;
  const RowPieces pieces_;
  const Gamma<T, G> gamma_;
  const bool streamed_;
  const rmsnorm_executor* const executor_;
};

template <class T, class G, Fault F>
accumulation_t<T> dot_product(const T* x, const T* dy, Gamma<T, G> gamma, std::int64_t begin,
                              std::int64_t end) {
  return sum_of_columns<accumulation_t<T>, F>(
      begin, end, [&](auto sum, auto c, auto lanes) RMSNORM_INLINE {
        return fma(gamma.at(c, lanes).times(load(dy + c, lanes)), load(x + c, lanes), sum);
      });
}

/// One row of backward, up to its columns.
template <class T>
struct BackwardRow {
  using A = accumulation_t<T>;
  const T* x;
  const T* dy;
  T* dx;
  A rstd, projection;
};

/// dx and dgamma's addends of columns [begin, end) of R rows, in the order of the rows, whatever R.
template <class T, class G, Fault F, bool want_dx, bool want_dgamma, int R, bool streamed>
void backward_columns(const BackwardRow<T>* rows, Gamma<T, G> gamma, accumulation_t<T>* sums,
                      std::int64_t begin, std::int64_t end) {
  using A = accumulation_t<T>;
  vector_t<T> rstd[R], projection[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    rstd[r] = broadcast(rows[r].rstd);
    projection[r] = broadcast(rows[r].projection);
  }
  const T *x[R], *dy[R];
  T* dx[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    x[r] = rows[r].x;
    dy[r] = rows[r].dy;
    dx[r] = rows[r].dx;
  }
  for_each_vector<A, F>(begin, end, [&](auto c, auto lanes) RMSNORM_INLINE {
    auto sum = broadcast(A(0));
    if constexpr (want_dgamma) sum = load(sums + c, lanes);
    const auto factor = gamma.at(c, lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto xs = load(x[r] + c, lanes), dys = load(dy[r] + c, lanes);
      if constexpr (want_dx) {
        const auto u = factor.times(dys);
        write<streamed>(dx[r] + c, input_gradient<F>(u, xs, rstd[r], projection[r]), lanes);
      }
      if constexpr (want_dgamma) sum = add_gamma_gradient<F>(sum, dys, xs, rstd[r]);
    }
    if constexpr (want_dgamma) store(sums + c, sum, lanes);
  });
}

template <class T, class G, Fault F, bool want_dx, bool want_dgamma>
class Backward {
  using A = accumulation_t<T>;

 public:
  explicit Backward(const rmsnorm_backward_args& args)
      : args_(args),
        cols_(args.cols),
        plan_(plan_backward(args)),
        pieces_(row_pieces(args.cols)),
        gamma_{static_cast<const G*>(args.gamma)},
        sums_(static_cast<A*>(args.workspace)),
        dots_(sums_ + plan_.dot_offset),
        streamed_(want_dx && stream_outputs(args.dx, args.rows, args.cols, sizeof(T), 3)),
        executor_(executor_for(args.executor, args.rows * args.cols)) {}

  std::int32_t run() {
    if (args_.workspace_bytes < plan_.workspace_bytes) return RMSNORM_WORKSPACE;
    if (plan_.by_columns) {
      by_columns();
    } else {
      by_strips();
    }
    return RMSNORM_OK;
  }

 private:
  BackwardRow<T> row(std::int64_t m, const T* x, const T* dy) const {
    T* dx = want_dx ? static_cast<T*>(args_.dx) + m * cols_ : nullptr;
    return {x, dy, dx, static_cast<const A*>(args_.rstd)[m], A(0)};
  }

  void set_projection(BackwardRow<T>& row, A dot) const {
    row.projection = projection_factor<F>(dot, row.rstd, cols_);
  }

  static void clear(A* sums, std::int64_t begin, std::int64_t end) {
    if constexpr (want_dgamma) {
      const auto zero = broadcast(A(0));
      for_each_vector<A, Fault::none>(
          begin, end, [&](auto c, auto lanes) RMSNORM_INLINE { store(sums + c, zero, lanes); });
    }
  }

  template <int R>
  void row_group(RowWalk<T>& x_rows, RowWalk<T>& dy_rows, std::int64_t m, A* sums) const {
    BackwardRow<T> rows[R];
    for (int r = 0; r < R; ++r) {
      const T *x = x_rows.next(), *dy = dy_rows.next();
      rows[r] = row(m + r, x, dy);
      if constexpr (want_dx) {
        set_projection(rows[r], sum_of_pieces<A>(cols_, pieces_, [&](auto from, auto to) {
                         return dot_product<T, G, F>(x, dy, gamma_, from, to);
                       }));
      }
    }
    if (streamed_) {
      backward_columns<T, G, F, want_dx, want_dgamma, R, want_dx>(rows, gamma_, sums, 0, cols_);
    } else {
      backward_columns<T, G, F, want_dx, want_dgamma, R, false>(rows, gamma_, sums, 0, cols_);
    }
  }

  void strip(std::int64_t begin, std::int64_t end, A* sums) const {
    const bool grouped = cols_ * static_cast<std::int64_t>(sizeof(T)) <= kGroupRowBytes;
    RowWalk<T> x_rows(args_.x, begin), dy_rows(args_.dy, begin);
    clear(sums, 0, cols_);
    std::int64_t m = begin;
    for (; grouped && m + kGroupRows <= end; m += kGroupRows)
      row_group<kGroupRows>(x_rows, dy_rows, m, sums);
    for (; m < end; ++m) row_group<1>(x_rows, dy_rows, m, sums);
    if (streamed_) end_stream();
  }

  void by_strips() const {
    for_each_piece(executor_, args_.rows, plan_.rows_per_strip > 0 ? plan_.rows_per_strip : 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     strip(begin, end, sums_ + begin / plan_.rows_per_strip * plan_.partial_stride);
                   });
    if constexpr (want_dgamma) {
      const std::int64_t strips = args_.rows > 0 ? plan_.strips : 0;
      for_each_piece(executor_for(args_.executor, strips * cols_), cols_, kColumnsPerTask / 8,
                     [&](std::int64_t begin, std::int64_t end) { add_strips(strips, begin, end); });
    }
  }

  void by_columns() const {
    RowWalk<T> x_rows(args_.x, 0), dy_rows(args_.dy, 0);
    for_each_piece(executor_, cols_, kColumnsPerTask,
                   [&](std::int64_t begin, std::int64_t end) { clear(sums_, begin, end); });
    constexpr std::int64_t kMaxGroup = 32;
    BackwardRow<T> rows[kMaxGroup];
    const std::int64_t group_rows = smaller(plan_.group_rows, kMaxGroup);
    for (std::int64_t first = 0; first < args_.rows; first += group_rows) {
      const std::int64_t count = smaller(group_rows, args_.rows - first);
      for (std::int64_t r = 0; r < count; ++r) {
        const T *x = x_rows.next(), *dy = dy_rows.next();
        rows[r] = row(first + r, x, dy);
      }
      if constexpr (want_dx) {
        auto dot_of_piece = [&](std::int64_t index) {
          const std::int64_t r = index / pieces_.count,
                             begin = index % pieces_.count * pieces_.cols;
          dots_[r * kMaxPieces + index % pieces_.count] = dot_product<T, G, F>(
              rows[r].x, rows[r].dy, gamma_, begin, smaller(begin + pieces_.cols, cols_));
        };
        for_each_task(executor_, count * pieces_.count, dot_of_piece);
        for (std::int64_t r = 0; r < count; ++r) {
          set_projection(rows[r], sum_of_pieces<A>(cols_, pieces_, [&](auto begin, auto) {
                           return dots_[r * kMaxPieces + begin / pieces_.cols];
                         }));
        }
      }
      for_each_piece(executor_, cols_, kColumnsPerTask, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = 0; r < count; ++r) {
          backward_columns<T, G, F, want_dx, want_dgamma, 1, false>(rows + r, gamma_, sums_, begin,
                                                                    end);
        }
      });
    }
    if constexpr (want_dgamma) {
      for_each_piece(executor_, cols_, kColumnsPerTask,
                     [&](std::int64_t begin, std::int64_t end) { add_strips(1, begin, end); });
    }
  }

  /// dgamma of columns [begin, end): the strips' sums in order.
  void add_strips(std::int64_t strips, std::int64_t begin, std::int64_t end) const {
    for_each_vector<A, F>(begin, end, [&](auto c, auto lanes) RMSNORM_INLINE {
      auto sum = broadcast(A(0));
      for (std::int64_t s = 0; s < strips; ++s) {
        sum = sum + load(sums_ + s * plan_.partial_stride + c, lanes);
      }
      if (args_.gamma_dtype == RMSNORM_FLOAT32) {
        store_wide(c, sum, lanes);
      } else {
        store(static_cast<T*>(args_.dgamma) + c, sum, lanes);
      }
    });
  }

  template <class Vector, class Lanes>
  void store_wide(std::int64_t c, Vector sum, Lanes lanes) const {
    if constexpr (sizeof(A) == 4) store(static_cast<float*>(args_.dgamma) + c, sum, lanes);
  }

  const rmsnorm_backward_args& args_;
  const std::int64_t cols_;
  const BackwardPlan plan_;
  const RowPieces pieces_;
  const Gamma<T, G> gamma_;
  A* const sums_;
  A* const dots_;
  const bool streamed_;
  const rmsnorm_executor* const executor_;
};

template <class T, class G, Fault F>
std::int32_t backward_typed(const rmsnorm_backward_args& args) {
  const bool dx = args.dx != nullptr, dgamma = args.dgamma != nullptr;
  if (dx && dgamma) return Backward<T, G, F, true, true>(args).run();
  if (dx) return Backward<T, G, F, true, false>(args).run();
  // gamma has no part in its own gradient.
  if (dgamma) return Backward<T, NoGamma, F, false, true>(args).run();
  return RMSNORM_OK;
}

template <Fault F>
std::int32_t tuned_forward(const rmsnorm_forward_args* args) {
  return dispatch_dtypes<Types>(*args, [&](auto x, auto gamma) {
    using T = decltype(x);
    if (args->gamma == nullptr) return Forward<T, NoGamma, F>(*args).run();
    return Forward<T, decltype(gamma), F>(*args).run();
  });
}

template <Fault F>
std::int32_t tuned_backward(const rmsnorm_backward_args* args) {
  return dispatch_dtypes<Types>(*args, [&](auto x, auto gamma) {
    using T = decltype(x);
    if (args->gamma == nullptr) return backward_typed<T, NoGamma, F>(*args);
    return backward_typed<T, decltype(gamma), F>(*args);
  });
}

#undef RMSNORM_INLINE

}  // namespace rmsnorm::kernels::cpu::RMSNORM_ISA
