// Part of tuned_rows.hpp, after tuned_loops.hpp.

namespace rmsnorm::kernels::cpu::RMSNORM_ISA {

template <class T, class G, Fault F>
accumulation_t<T> dot_product(const T* x, const T* dy, Gamma<T, G> gamma, std::int64_t begin,
                              std::int64_t end) {
  return sum_of_columns<T, F>(begin, end, [&](auto sum, auto c, auto lanes) RMSNORM_INLINE {
    if constexpr (F == Fault::gamma_missing_in_mean)
      return fma(load(dy + c, lanes), load(x + c, lanes), sum);
    else
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

/// With its number and that of all rows, where a fault may ask for them.
template <class T>
struct NumberedRow : BackwardRow<T> {
  std::int64_t number, rows;
};
template <class T, Fault F>
using row_t = std::conditional_t<F == Fault::none, BackwardRow<T>, NumberedRow<T>>;

/// dgamma's addends of columns [begin, end) of some rows, where the fault is in their sum.
template <Fault F, class T>
void add_rows_with_fault(const NumberedRow<T>* rows, int count, accumulation_t<T>* sums,
                         std::int64_t begin, std::int64_t end) {
  using A = accumulation_t<T>;
  for (int r = 0; r < count; ++r) {
    const NumberedRow<T>& row = rows[r];
    for (std::int64_t c = begin; c < end; ++c) {
      sums[c] = add_row<F>(sums[c], static_cast<A>(cpu::widen(row.dy[c])),
                           static_cast<A>(cpu::widen(row.x[c])), row.rstd, row.number, row.rows,
                           RoundTo<T>{});
    }
  }
}

/// dx and dgamma's addends of columns [begin, end) of R rows, in the order of the rows, whatever R;
/// fetches x and dy `x_ahead` and `dy_ahead` bytes further.
template <class T, class G, Fault F, bool want_dx, bool want_dgamma, int R, bool streamed>
void backward_columns(const row_t<T, F>* rows, Gamma<T, G> gamma, accumulation_t<T>* sums,
                      std::int64_t begin, std::int64_t end, std::int64_t x_ahead,
                      std::int64_t dy_ahead) {
  using A = accumulation_t<T>;
  constexpr bool sums_here = want_dgamma && !kIsInDgammaSum<F>;
  vector_t<T> rstd[R], projection[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    rstd[r] = all_lanes<T>(rows[r].rstd);
    projection[r] = all_lanes<T>(rows[r].projection);
  }
  const T *x[R], *dy[R];
  T* dx[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    x[r] = rows[r].x;
    dy[r] = rows[r].dy;
    dx[r] = rows[r].dx;
  }
  for_each_vector<T, F>(begin, end, [&](auto c, auto lanes) RMSNORM_INLINE {
    vector_t<T> sum;
    if constexpr (sums_here) sum = load_sums<T>(sums + c);
    const auto factor = gamma.at(c, lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      fetch(x[r] + c, x_ahead);
      fetch(dy[r] + c, dy_ahead);
      const auto xs = load(x[r] + c, lanes), dys = load(dy[r] + c, lanes);
      if constexpr (want_dx) {
        if constexpr (kIsInDxElement<F>) {
          const auto element = [](A d, A v, A g, A s, A p) { return dx_element<F>(d, v, g, s, p); };
          const auto gammas = factor.times(all_lanes<T>(1));
          write<streamed>(dx[r] + c,
                          in_each_lane<A>(element, dys, xs, gammas, rstd[r], projection[r]), lanes);
        } else {
          const auto u = factor.times(dys);
          write<streamed>(dx[r] + c, input_gradient<F>(u, xs, rstd[r], projection[r]), lanes);
        }
      }
      if constexpr (sums_here) sum = add_gamma_gradient<F>(sum, dys, xs, rstd[r]);
    }
    if constexpr (sums_here) store_sums<T>(sums + c, sum);
  });
  if constexpr (want_dgamma && !sums_here) add_rows_with_fault<F>(rows, R, sums, begin, end);
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
    if constexpr (F == Fault::scratch_overrun) {
      if (want_dgamma) sums_[plan_.workspace_bytes / sizeof(A)] = A(0);
    }
    return RMSNORM_OK;
  }

 private:
  row_t<T, F> row(std::int64_t m, const T* x, const T* dy) const {
    T* dx = want_dx ? static_cast<T*>(args_.dx) + output_offset<F>(m, cols_) : nullptr;
    const A* rstd = static_cast<const A*>(args_.rstd);
    if constexpr (F != Fault::none) {
      return {{x, dy, dx, quiet_number(rstd[rstd_row<F>(m)]), A(0)}, m, args_.rows};
    } else {
      return {x, dy, dx, quiet_number(rstd[m]), A(0)};
    }
  }

  void set_projection(row_t<T, F>& row, A dot) const {
    row.projection = projection_of<F>(dot, row.rstd, args_.rows, cols_);
  }

  static void clear(A* sums, std::int64_t begin, std::int64_t end) {
    if constexpr (want_dgamma) {
      for_each_vector<T, Fault::none>(begin, end, [&](auto c, auto) RMSNORM_INLINE {
        store_sums<T>(sums + c, all_lanes<T>(0));
      });
    }
  }

  template <int R>
  void write_rows(const row_t<T, F>* rows, A* sums, std::int64_t x_ahead,
                  std::int64_t dy_ahead) const {
    if (streamed_) {
      backward_columns<T, G, F, want_dx, want_dgamma, R, want_dx>(rows, gamma_, sums, 0, cols_,
                                                                  x_ahead, dy_ahead);
    } else {
      backward_columns<T, G, F, want_dx, want_dgamma, R, false>(rows, gamma_, sums, 0, cols_,
                                                                x_ahead, dy_ahead);
    }
  }

  /// Rows m, ..., m + count - 1.
  void batch(RowWalk<T>& x_rows, RowWalk<T>& dy_rows, std::int64_t m, std::int64_t count,
             A* sums) const {
    row_t<T, F> rows[kBatchRows];
    for (std::int64_t r = 0; r < count; ++r) {
      const T *x = x_rows.next(), *dy = dy_rows.next();
      rows[r] = row(m + r, x, dy);
      if constexpr (want_dx) {
        set_projection(rows[r],
                       sum_of_pieces<A>(cols_of_ux<F>(cols_), pieces_, [&](auto from, auto to) {
                         return dot_product<T, G, F>(x, dy, gamma_, from, to);
                       }));
      }
    }
    constexpr std::int64_t bytes = sizeof(T);
    const std::int64_t tensor = args_.rows * cols_ * bytes;
    const std::int64_t x_ahead = bytes_ahead(count, args_.x.inner_stride * bytes, tensor),
                       dy_ahead = bytes_ahead(count, args_.dy.inner_stride * bytes, tensor);
    std::int64_t r = 0;
    for (; r + kGroupRows <= count; r += kGroupRows)
      write_rows<kGroupRows>(rows + r, sums, x_ahead, dy_ahead);
    for (; r < count; ++r) write_rows<1>(rows + r, sums, x_ahead, dy_ahead);
  }

  void strip(std::int64_t begin, std::int64_t end, A* sums) const {
    const std::int64_t rows = batch_rows(2 * cols_ * static_cast<std::int64_t>(sizeof(T)));
    RowWalk<T> x_rows(args_.x, begin), dy_rows(args_.dy, begin);
    clear(sums, 0, cols_);
    for (std::int64_t m = begin; m < end; m += rows)
      batch(x_rows, dy_rows, m, smaller(rows, end - m), sums);
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
    row_t<T, F> rows[kMaxGroup];
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
          dots_[r * kMaxPieces + index % pieces_.count] =
              dot_product<T, G, F>(rows[r].x, rows[r].dy, gamma_, begin,
                                   smaller(begin + pieces_.cols, cols_of_ux<F>(cols_)));
        };
        for_each_task(executor_, count * pieces_.count, dot_of_piece);
        for (std::int64_t r = 0; r < count; ++r) {
          set_projection(rows[r],
                         sum_of_pieces<A>(cols_of_ux<F>(cols_), pieces_, [&](auto begin, auto) {
                           return dots_[r * kMaxPieces + begin / pieces_.cols];
                         }));
        }
      }
      for_each_piece(executor_, cols_, kColumnsPerTask, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = 0; r < count; ++r) {
          backward_columns<T, G, F, want_dx, want_dgamma, 1, false>(rows + r, gamma_, sums_, begin,
                                                                    end, 0, 0);
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
    for_each_vector<T, F>(begin, end, [&](auto c, auto lanes) RMSNORM_INLINE {
      auto sum = all_lanes<T>(0);
      for (std::int64_t s = 0; s < strips; ++s) {
        sum = sum + load_sums<T>(sums_ + s * plan_.partial_stride + c);
      }
      if constexpr (F == Fault::dgamma_accumulated)
        sum = sum + load(static_cast<const T*>(args_.dgamma) + c, lanes);
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

}  // namespace rmsnorm::kernels::cpu::RMSNORM_ISA
