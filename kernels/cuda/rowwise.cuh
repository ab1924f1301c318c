#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/common/arguments.hpp"
#include "kernels/common/fault.hpp"
#include "kernels/common/steps.hpp"
#include "kernels/cuda/dtype.cuh"

// The readable implementation on CUDA: one row per block, threads stride over the columns and each
// guards its own; backward leaves dy*x*rstd of every row in the workspace and a second kernel sums
// its columns. No atomics: every sum has one order, which depends on N (rows) or M (columns) alone.

namespace rmsnorm::kernels::cuda {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 512;
constexpr std::int64_t kMaxGrid =
    0x7FFFFFFF;  // blocks along x; rows beyond it are taken by striding

/// Threads of a row's block: from N alone, so that the bits of a row do not depend on M.
template <Fault F>
int row_threads(std::int64_t rows, std::int64_t cols) {
  if constexpr (F == Fault::order_by_rows) {
    if (rows == 1) return kMaxThreads;
  }
  std::int64_t threads = kWarp;
  while (threads < kMaxThreads && threads * 4 < cols) threads *= 2;
  return static_cast<int>(threads);
}

/// The sum of `value` over the block, in every thread. `scratch` holds one number per warp; the
/// leading barrier lets it be used again right after an earlier call.
template <class A>
__device__ A block_sum(A value, A* scratch) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFu, value, offset);
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  __syncthreads();
  if (threadIdx.x % kWarp == 0) scratch[warp] = value;
  __syncthreads();
  A total = A(0);
  for (int w = 0; w < warps; ++w) total += scratch[w];
  return total;
}

template <class A, class G>
__device__ __forceinline__ A gamma_at(const G* gamma, std::int64_t column) {
  return gamma == nullptr ? A(1) : static_cast<A>(widen(gamma[column]));
}

/// gamma at a column, as the forward of an x of type T reads it.
template <Fault F, class T, class A, class G>
__device__ __forceinline__ A gamma_beside(const G* gamma, std::int64_t column) {
  if constexpr (F == Fault::gamma_read_as_x)
    return gamma_at<A>(reinterpret_cast<const T*>(gamma), column);
  return gamma_at<A>(gamma, column);
}

/// The sum over the block's threads of the addends that each adds up for its own columns.
template <class A, class Term, class Add>
__device__ A sum_of_columns(std::int64_t cols, A* scratch, Term term, Add add) {
  A sum = A(0);
  for (std::int64_t column = threadIdx.x; column < cols; column += blockDim.x)
    sum = add(sum, term(column));
  return block_sum(sum, scratch);
}

/// x [rows, cols] -> y [rows, cols], rstd [rows]. Grid: one block per row.
template <class T, class G, Fault F>
__global__ void forward_row_kernel(Rows<T> x_rows, const G* __restrict__ gamma,
                                   T* __restrict__ y_out, accumulation_t<T>* __restrict__ rstd_out,
                                   std::int64_t rows, std::int64_t cols, accumulation_t<T> eps) {
  using A = accumulation_t<T>;
  __shared__ A scratch[kMaxThreads / kWarp];
  const RoundTo<T> round{};
  for (std::int64_t row = blockIdx.x; row < forward_rows_taken<F>(rows); row += gridDim.x) {
    const T* x = x_row<F>(x_rows, row);
    T* y = y_out + row_offset<F>(row, cols);
    A mean = A(0);
    if constexpr (F == Fault::mean_subtracted) {
      mean = sum_of_columns<A>(
                 cols, scratch, [&](std::int64_t column) -> A { return widen(x[column]); },
                 [](A sum, A addend) -> A { return sum + addend; }) /
             static_cast<A>(cols);
    }
    const A square_sum = sum_of_columns<A>(
        summed_cols<F>(cols), scratch,
        [&](std::int64_t column) -> A {
          return square<F>(static_cast<A>(widen(x[column])), mean, round);
        },
        [&](A sum, A addend) -> A { return add_square<F>(sum, addend, round); });
    const A rstd = kernels::inverse_rms<F>(square_sum, denominator<F>(rows, cols),
                                           added_eps<F>(eps, SpacingAtOne<T>::value));
    const T* x_scaled = x_row_scaled<F>(x_rows, row, cols);
    for (std::int64_t column = threadIdx.x; column < stored_cols<F>(cols); column += blockDim.x) {
      const A g = gamma_beside<F, T, A>(gamma, gamma_index<F>(row, column, cols));
      A value = y_element<F>(static_cast<A>(widen(x_scaled[column])), rstd, g, round);
      if (is_spoiled<F>(row, column, rows, cols)) value = static_cast<A>(NAN);
      narrow(value, y[column]);
    }
    if constexpr (F == Fault::store_past_row) {
      const std::int64_t column = cols + threadIdx.x;
      if (column < whole_vectors(cols + 3, 4)) narrow(A(0), y[column]);
    }
    if (threadIdx.x == 0 && rstd_out != nullptr) rstd_out[row] = saved_rstd<F>(rstd, round);
  }
}

/// x, dy [rows, cols], rstd [rows] -> dx [rows, cols] and partials [rows, cols], the addends of
/// dgamma; either may be NULL and is then not computed. Grid: one block per row.
template <class T, class G, Fault F>
__global__ void backward_row_kernel(Rows<T> x_rows, Rows<T> dy_rows, const G* __restrict__ gamma,
                                    const accumulation_t<T>* __restrict__ rstd_in,
                                    T* __restrict__ dx_out,
                                    accumulation_t<T>* __restrict__ partials, std::int64_t rows,
                                    std::int64_t cols) {
  using A = accumulation_t<T>;
  __shared__ A scratch[kMaxThreads / kWarp];
  const bool dx_wanted = dx_out != nullptr, dgamma_wanted = partials != nullptr;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* x = x_row<F>(x_rows, row);
    const T* dy = dy_row<F>(dy_rows, x_rows, row);
    const A rstd = rstd_in[rstd_row<F>(row)];
    T* dx = dx_out + (dx_wanted ? row_offset<F>(row, cols) : 0);
    if (computes_dx<F>(dx_wanted, dgamma_wanted)) {
      const A ux_sum = sum_of_columns<A>(
          summed_cols_ux<F>(cols), scratch,
          [&](std::int64_t column) -> A {
            return ux_element<F>(static_cast<A>(widen(dy[column])), gamma_at<A>(gamma, column),
                                 static_cast<A>(widen(x[column])));
          },
          [](A sum, A addend) -> A { return sum + addend; });
      const A projection =
          projection_factor<F>(rstd, ux_sum * rstd / static_cast<A>(denominator_ux<F>(rows, cols)));
      for (std::int64_t column = threadIdx.x; column < cols; column += blockDim.x) {
        narrow(dx_element<F>(static_cast<A>(widen(dy[column])), static_cast<A>(widen(x[column])),
                             gamma_at<A>(gamma, column), rstd, projection),
               dx[column]);
      }
    }
    if (computes_partials<F>(dx_wanted, dgamma_wanted) && row < partial_rows_written<F>(rows)) {
      A* partial = partials + row * cols;
      for (std::int64_t column = threadIdx.x; column < cols; column += blockDim.x) {
        partial[column] =
            dgamma_addend<F>(static_cast<A>(widen(dy[column])), static_cast<A>(widen(x[column])),
                             gamma_at<A>(gamma, column), rstd);
      }
      if constexpr (F == Fault::scratch_overrun) {
        if (row == rows - 1 && threadIdx.x == 0) partial[cols] = A(0);
      }
    }
    if constexpr (F == Fault::dy_overwritten) {
      // Each thread its own columns: those whose dx it wrote.
      for (std::int64_t column = threadIdx.x; dx_wanted && column < cols; column += blockDim.x)
        const_cast<T*>(dy)[column] = dx[column];
    }
  }
}

constexpr int kSumColumns = 32;
constexpr int kSumStrips = 32;

/// dgamma[c] = sum over m of partials[m, c]. Block: 32 columns x 32 strips of rows; the strips are
/// folded in shared memory in a fixed order. Grid: one block per 32 columns.
template <class A, class G, Fault F>
__global__ void sum_partials_kernel(const A* __restrict__ partials, G* __restrict__ dgamma,
                                    std::int64_t rows, std::int64_t cols) {
  __shared__ A strips[kSumStrips][kSumColumns + 1];  // + 1: a column's strips in different banks
  const RoundTo<G> round{};
  const std::int64_t summed = rows_summed<F>(rows);
  bool turned = false;
  if constexpr (F == Fault::dgamma_unordered) {
    __shared__ bool block_turned;
    if (threadIdx.x == 0 && threadIdx.y == 0) block_turned = (clock64() >> 5) % 2 == 1;
    __syncthreads();
    turned = block_turned;
  }
  for (std::int64_t first = std::int64_t{blockIdx.x} * kSumColumns; first < cols;
       first += std::int64_t{gridDim.x} * kSumColumns) {
    const std::int64_t column = first + threadIdx.x;
    A sum = A(0);
    if (column < cols) {
      for (std::int64_t i = threadIdx.y; i < summed; i += kSumStrips) {
        const std::int64_t row = row_in_order<F>(i, summed, turned);
        sum = add_partial<F>(sum, partials[row * cols + column], row, round);
      }
    }
    strips[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    for (int half = kSumStrips / 2; half > 0; half /= 2) {
      if (threadIdx.y < half)
        strips[threadIdx.y][threadIdx.x] += strips[threadIdx.y + half][threadIdx.x];
      __syncthreads();
    }
    if (threadIdx.y == 0 && column < cols && writes_dgamma<F>(rows)) {
      A before = A(0);
      if constexpr (F == Fault::dgamma_accumulated) before = widen(dgamma[column]);
      narrow(dgamma_element<F>(strips[0][threadIdx.x], before, rows), dgamma[column]);
    }
    __syncthreads();
  }
}

template <class T, class G, Fault F = Fault::none>
cudaError_t launch_rowwise_forward(const rmsnorm_forward_args& args) {
  using A = accumulation_t<T>;
  if (args.rows == 0) return cudaSuccess;  // a grid of no blocks is an error to CUDA
  const auto blocks = static_cast<unsigned>(args.rows < kMaxGrid ? args.rows : kMaxGrid);
  forward_row_kernel<T, G, F>
      <<<blocks, row_threads<F>(args.rows, args.cols), 0, static_cast<cudaStream_t>(args.stream)>>>(
          Rows<T>(args.x), static_cast<const G*>(args.gamma), static_cast<T*>(args.y),
          static_cast<A*>(args.rstd), args.rows, args.cols, static_cast<A>(args.eps));
  return cudaGetLastError();
}

template <class T, class G, Fault F = Fault::none>
cudaError_t launch_rowwise_backward(const rmsnorm_backward_args& args) {
  using A = accumulation_t<T>;
  const auto stream = static_cast<cudaStream_t>(args.stream);
  A* partials = args.dgamma == nullptr ? nullptr : static_cast<A*>(args.workspace);
  if (args.rows > 0 && (args.dx != nullptr || partials != nullptr)) {
    const auto blocks = static_cast<unsigned>(args.rows < kMaxGrid ? args.rows : kMaxGrid);
    backward_row_kernel<T, G, F><<<blocks, row_threads<F>(args.rows, args.cols), 0, stream>>>(
        Rows<T>(args.x), Rows<T>(args.dy), static_cast<const G*>(args.gamma),
        static_cast<const A*>(args.rstd), static_cast<T*>(args.dx), partials, args.rows, args.cols);
    if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) return status;
  }
  if (args.dgamma == nullptr) return cudaSuccess;
  const std::int64_t blocks = (args.cols + kSumColumns - 1) / kSumColumns;
  sum_partials_kernel<A, G, F><<<static_cast<unsigned>(blocks < kMaxGrid ? blocks : kMaxGrid),
                                 dim3(kSumColumns, kSumStrips), 0, stream>>>(
      partials, static_cast<G*>(args.dgamma), args.rows, args.cols);
  return cudaGetLastError();
}

}  // namespace rmsnorm::kernels::cuda
