// Part of tuned_rows.hpp, after tuned_loops.hpp.

namespace rmsnorm::kernels::cpu::RMSNORM_ISA {

template <class T, Fault F>
accumulation_t<T> square_sum(const T* x, std::int64_t begin, std::int64_t end) {
  using A = accumulation_t<T>;
  return sum_of_columns<T, F>(begin, end, [&](auto sum, auto c, auto lanes) RMSNORM_INLINE {
    const auto value = load(x + c, lanes);
    if constexpr (kIsInSquare<F>) {
      const auto add = [](A s, A v) {
        return add_square<F>(s, square<F>(v, A(0), RoundTo<T>{}), RoundTo<T>{});
      };
      return in_each_lane<A>(add, sum, value);
    } else {
      return fma(value, value, sum);
    }
  });
}

/// Columns [begin, end) of y of R rows; fetches x `ahead` bytes further.
template <class T, class G, Fault F, int R, bool streamed>
void write_output(const T* const* x, const accumulation_t<T>* rstd, Gamma<T, G> gamma, T* const* y,
                  std::int64_t begin, std::int64_t end, std::int64_t ahead) {
  using A = accumulation_t<T>;
  vector_t<T> rstds[R];
  const T* xs[R];
  T* ys[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    rstds[r] = all_lanes<T>(rstd[r]);
    xs[r] = x[r];
    ys[r] = y[r];
  }
  for_each_vector<T, F>(begin, end, [&](auto c, auto lanes) RMSNORM_INLINE {
    const auto factor = gamma.at(c, lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      fetch(xs[r] + c, ahead);
      if constexpr (kIsInYElement<F>) {
        const auto element = [](A v, A s, A g) { return y_element<F>(v, s, g, RoundTo<T>{}); };
        const auto value = in_each_lane<A>(element, load(xs[r] + c, lanes), rstds[r],
                                           factor.times(all_lanes<T>(1)));
        write<streamed>(ys[r] + c, value, lanes);
      } else {
        const auto value = factor.times(normalized<F>(load(xs[r] + c, lanes), rstds[r]));
        write<streamed>(ys[r] + c, value, lanes);
      }
    }
  });
}

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
  T* output_row(std::int64_t m) const {
    return static_cast<T*>(args_.y) + output_offset<F>(m, cols_);
  }

  A rstd_of(A square_sum) const {
    return reciprocal_rms<F, T>(square_sum, args_.rows, cols_, args_.eps);
  }

  /// What the backward gets of it.
  void keep_rstd(std::int64_t m, A rstd) const {
    if (args_.rstd != nullptr) static_cast<A*>(args_.rstd)[m] = kept_rstd<F, T>(rstd);
  }

  /// What a fault does to a row of y that has been written.
  void spoil_output(std::int64_t m, T* y) const {
    if constexpr (F == Fault::nan_element) {
      for (std::int64_t c = 0; c < cols_; ++c) {
        if (is_spoiled<F>(m, c, args_.rows, cols_))
          store(y + c, all_lanes<T>(A(__builtin_nan(""))), First{1});
      }
    }
    if constexpr (F == Fault::store_past_row) {
      for (std::int64_t c = cols_; c < whole_vectors(cols_ + 3, 4); ++c)
        store(y + c, all_lanes<T>(0), First{1});
    }
    static_cast<void>(m), static_cast<void>(y);
  }

  template <int R>
  void write_rows(const T* const* x, const A* rstd, T* const* y, std::int64_t ahead) const {
    const std::int64_t cols = cols_of_output<F>(cols_);
    if (streamed_) {
      write_output<T, G, F, R, true>(x, rstd, gamma_, y, 0, cols, ahead);
    } else {
      write_output<T, G, F, R, false>(x, rstd, gamma_, y, 0, cols, ahead);
    }
  }

  /// Rows m, ..., m + count - 1.
  void batch(RowWalk<T>& x_rows, std::int64_t m, std::int64_t count) const {
    const T* x[kBatchRows];
    T* y[kBatchRows];
    A sums[kBatchRows] = {}, rstd[kBatchRows];
    for (std::int64_t r = 0; r < count; ++r) {
      const T* row = x[r] = x_rows.next();
      y[r] = output_row(m + r);
      sums[r] = sum_of_pieces<A>(cols_of_squares<F>(cols_), pieces_, [&](auto begin, auto end) {
        return square_sum<T, F>(row, begin, end);
      });
    }
    // All of the batch, whatever its count, as vectors.
    for (int r = 0; r < kBatchRows; ++r) rstd[r] = rstd_of(sums[r]);
    for (std::int64_t r = 0; r < count; ++r) keep_rstd(m + r, rstd[r]);
    constexpr std::int64_t bytes = sizeof(T);
    const std::int64_t ahead =
        bytes_ahead(count, args_.x.inner_stride * bytes, args_.rows * cols_ * bytes);
    std::int64_t r = 0;
    for (; r + kGroupRows <= count; r += kGroupRows)
      write_rows<kGroupRows>(x + r, rstd + r, y + r, ahead);
    for (; r < count; ++r) write_rows<1>(x + r, rstd + r, y + r, ahead);
    if constexpr (F != Fault::none) {
      for (r = 0; r < count; ++r) spoil_output(m + r, y[r]);
    }
  }

  void by_rows() const {
    const std::int64_t rows_per_task = cols_ < kElementsPerTask ? kElementsPerTask / cols_ : 1;
    const std::int64_t rows = batch_rows(cols_ * static_cast<std::int64_t>(sizeof(T)));
    for_each_piece(executor_, args_.rows, rows_per_task, [&](std::int64_t begin, std::int64_t end) {
      RowWalk<T> x_rows(args_.x, begin);
      for (std::int64_t m = begin; m < end; m += rows) batch(x_rows, m, smaller(rows, end - m));
      if (streamed_) end_stream();
    });
  }

  /// Fewer long rows than threads: the threads share each row.
  void by_columns() const {
    RowWalk<T> x_rows(args_.x, 0);
    for (std::int64_t m = 0; m < args_.rows; ++m) {
      const T* x = x_rows.next();
      T* y = output_row(m);
      A sums[kMaxPieces];
      for_each_piece(executor_, cols_of_squares<F>(cols_), pieces_.cols,
                     [&](std::int64_t begin, std::int64_t end) {
                       sums[begin / pieces_.cols] = square_sum<T, F>(x, begin, end);
                     });
      const A rstd =
          rstd_of(sum_of_pieces<A>(cols_of_squares<F>(cols_), pieces_,
                                   [&](auto begin, auto) { return sums[begin / pieces_.cols]; }));
      keep_rstd(m, rstd);
      for_each_piece(executor_, cols_of_output<F>(cols_), pieces_.cols,
                     [&](std::int64_t begin, std::int64_t end) {
                       write_output<T, G, F, 1, false>(&x, &rstd, gamma_, &y, begin, end, 0);
                     });
      if constexpr (F != Fault::none) spoil_output(m, y);
    }
  }

  const rmsnorm_forward_args& args_;
  const std::int64_t cols_;
  const RowPieces pieces_;
  const Gamma<T, G> gamma_;
  const bool streamed_;
  const rmsnorm_executor* const executor_;
};

}  // namespace rmsnorm::kernels::cpu::RMSNORM_ISA
