#include <cstdint>
#include <type_traits>

#include "kernels/common/arguments.hpp"
#include "kernels/common/fault.hpp"
#include "kernels/common/steps.hpp"
#include "kernels/common/tuned_faults.hpp"
#include "kernels/cpu/dtype.hpp"
#include "kernels/cpu/tasks.hpp"
#include "kernels/cpu/tuned.hpp"

// What the two passes of `tuned` on the CPU share, in the vectors of namespace RMSNORM_ISA
// (vector_*.hpp), which the including file defines. No include guard: each instruction set takes
// its own copy. See tuned.hpp for why nothing inline from elsewhere is called here.
//
// A sum over a row is taken in `kAccumulators` vectors whose lanes are then added pairwise; a row
// longer than a piece (row_pieces) is the sum of its pieces in order. Both follow from the columns
// and the instruction set alone.

namespace rmsnorm::kernels::cpu::RMSNORM_ISA {

/// What the columns of T are worked on in: load() of T gives it.
template <class T>
using vector_t = decltype(load(static_cast<const T*>(nullptr), All{}));
template <class T>
constexpr std::int64_t kColumns = sizeof(vector_t<T>) / sizeof(accumulation_t<T>);

/// Whether they are two vectors.
template <class T>
constexpr bool kInPairs = sizeof(vector_t<T>) != kVectorBytes;

template <class T>
vector_t<T> all_lanes(accumulation_t<T> value) {
  if constexpr (kInPairs<T>) {
    return {broadcast(value), broadcast(value)};
  } else {
    return broadcast(value);
  }
}

/// Numbers of G in the order of the columns in vectors of T.
template <class T, class G, class Lanes>
vector_t<T> load_as(const G* p, Lanes lanes) {
  if constexpr (kInPairs<T> && !kInPairs<G>) {
    return load_pair(p, lanes);
  } else {
    return load(p, lanes);
  }
}

/// Scratch that keeps vectors of T as they are.
template <class T>
vector_t<T> load_sums(const accumulation_t<T>* p) {
  if constexpr (kInPairs<T>) {
    return {load(p, All{}), load(p + kColumns<T> / 2, All{})};
  } else {
    return load(p, All{});
  }
}
template <class T>
void store_sums(accumulation_t<T>* p, vector_t<T> sums) {
  if constexpr (kInPairs<T>) {
    store(p, sums.even, All{});
    store(p + kColumns<T> / 2, sums.odd, All{});
  } else {
    store(p, sums, All{});
  }
}

inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
inline float square_root(float value) {
  return __builtin_sqrtf(value);
}
inline double square_root(double value) {
  return __builtin_sqrt(value);
}

/// The value, with one NaN for all of them: narrow() may know no other.
template <class A>
A quiet_number(A value) {
  return value == value ? value : A(__builtin_nan(""));
}

/// f of each lane of its vectors. For faults, whose speed does not matter.
template <class A, class Apply, class Vector, class... More>
Vector in_each_lane(Apply f, Vector first, More... more) {
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(sizeof first / sizeof(A)); ++i)
    first[i] = f(first[i], more[i]...);
  return first;
}

// The places where a small mistake makes a wrong kernel, each by its name. The steps of steps.hpp
// are taken with a fault alone: of the product, they would be inline functions from elsewhere.

/// Of `cols` columns, those that a sum over the row, or an output, covers.
template <Fault F>
std::int64_t cols_of_squares(std::int64_t cols) {
  if constexpr (F != Fault::none) return summed_cols<F>(cols);
  return cols;
}
template <Fault F>
std::int64_t cols_of_ux(std::int64_t cols) {
  if constexpr (F != Fault::none) return summed_cols_ux<F>(cols);
  return cols;
}
template <Fault F>
std::int64_t cols_of_output(std::int64_t cols) {
  if constexpr (F != Fault::none) return stored_cols<F>(cols);
  return cols;
}

/// The lanes of the last vector that hold columns.
template <Fault F>
First tail_lanes(std::int64_t columns_left) {
  return First{columns_left};
}

/// Where row m of an output starts.
template <Fault F>
std::int64_t output_offset(std::int64_t m, std::int64_t cols) {
  if constexpr (F != Fault::none) return row_offset<F>(m, cols);
  return m * cols;
}

/// rstd of a row of T.
template <Fault F, class T, class A>
A reciprocal_rms(A square_sum, std::int64_t rows, std::int64_t cols, double eps) {
  if constexpr (F != Fault::none) {
    return inverse_rms<F>(square_sum, denominator<F>(rows, cols),
                          added_eps<F>(static_cast<A>(eps), kSpacingAtOne<T>));
  }
  return A(1) / square_root(square_sum / static_cast<A>(cols) + static_cast<A>(eps));
}

/// rstd as the backward gets it.
template <Fault F, class T, class A>
A kept_rstd(A rstd) {
  if constexpr (F == Fault::rstd_in_16_bits) return saved_rstd<F>(rstd, RoundTo<T>{});
  return rstd;
}

template <Fault F, class Vector>
Vector normalized(Vector x, Vector rstd) {
  return x * rstd;
}

/// What multiplies x in dx: rstd * (u - x * projection) is rstd*u - x*rstd^3*mean(u*x) with no
/// factor that can overflow alone.
template <Fault F, class A>
A projection_of(A dot, A rstd, std::int64_t rows, std::int64_t cols) {
  if constexpr (F != Fault::none)
    return projection_factor<F>(rstd, dot * rstd / static_cast<A>(denominator_ux<F>(rows, cols)));
  return rstd * (dot * rstd / static_cast<A>(cols));
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
    return {load_as<T>(data + c, lanes)};
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

/// Runs body(c, lanes) for the vectors of T that cover columns [begin, end).
template <class T, Fault F, class Body>
RMSNORM_INLINE inline void for_each_vector(std::int64_t begin, std::int64_t end, Body body) {
  std::int64_t c = begin;
  for (; c + kColumns<T> <= end; c += kColumns<T>) body(c, All{});
  if (c < end) body(c, tail_lanes<F>(end - c));
}

/// The sum of term(c) over columns [begin, end): add(sum, c, lanes) adds a vector of terms.
template <class T, Fault F, class Add>
RMSNORM_INLINE inline accumulation_t<T> sum_of_columns(std::int64_t begin, std::int64_t end,
                                                       Add add) {
  constexpr std::int64_t lanes = kColumns<T>;
  constexpr int kSums = kInPairs<T> ? kAccumulators / 2 : kAccumulators;
  vector_t<T> sums[kSums];
#pragma GCC unroll 8
  for (int i = 0; i < kSums; ++i) sums[i] = all_lanes<T>(0);
  std::int64_t c = begin;
  for (; c + lanes * kSums <= end; c += lanes * kSums) {
#pragma GCC unroll 8
    for (int i = 0; i < kSums; ++i) sums[i] = add(sums[i], c + i * lanes, All{});
  }
#pragma GCC unroll 8
  for (int i = 0; i < kSums; ++i, c += lanes) {
    if (c + lanes <= end) {
      sums[i] = add(sums[i], c, All{});
    } else if (c < end) {
      sums[i] = add(sums[i], c, tail_lanes<F>(end - c));
    }
  }
#pragma GCC unroll 8
  for (int half = kSums / 2; half > 0; half /= 2) {
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

template <bool streamed, class T, class Vector, class Lanes>
RMSNORM_INLINE inline void write(T* p, Vector value, Lanes lanes) {
  if constexpr (streamed) {
    stream(p, value, lanes);
  } else {
    store(p, value, lanes);
  }
}

constexpr std::int64_t kElementsPerTask = 1 << 15;
constexpr std::int64_t kElementsOfLongRow = 1 << 16;
constexpr std::int64_t kColumnsPerTask = 4096;

/// Rows that a sweep over the columns writes together, so that gamma is loaded once for them.
constexpr int kGroupRows = 2;

/// Rows whose sums are taken before any of them is written: the ends of the sums overlap, and
/// writing one batch fetches the next. More bytes evict each other from L1. The bits do not depend
/// on it.
constexpr int kBatchRows = 8;
constexpr std::int64_t kBatchBytes = 8192;
inline std::int64_t batch_rows(std::int64_t bytes_read_per_row) {
  const std::int64_t fitting = kBatchBytes / bytes_read_per_row;
  return fitting < 1 ? 1 : smaller(fitting, kBatchRows);
}

/// How far ahead of a row its sweep fetches another, in bytes; 0 where the tensor may be in the
/// caches, from which to fetch early only evicts, and for rows that L2 would not keep until their
/// turn.
constexpr std::int64_t kCachedTensorBytes = std::int64_t(2) << 20;
constexpr std::int64_t kFetchedBytes = 1 << 16;
inline std::int64_t bytes_ahead(std::int64_t rows, std::int64_t row_stride_bytes,
                                std::int64_t tensor_bytes) {
  const std::int64_t bytes = rows * row_stride_bytes;
  return tensor_bytes > kCachedTensorBytes && bytes < kFetchedBytes ? bytes : 0;
}
// Inlined by force: g++ 12 takes a call of a function that only fetches for one without effect.
RMSNORM_INLINE inline void fetch(const void* p, std::int64_t ahead) {
  // A number, since p + ahead may lie past the tensor, from where nothing is fetched.
  const auto address = reinterpret_cast<std::uintptr_t>(p) + static_cast<std::uintptr_t>(ahead);
  __builtin_prefetch(reinterpret_cast<const void*>(address));
}

}  // namespace rmsnorm::kernels::cpu::RMSNORM_ISA
