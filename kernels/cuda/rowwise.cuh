#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/arguments.hpp"
#include "kernels/common/fault.hpp"
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
inline int row_threads(std::int64_t cols) {
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

/// x [rows, cols] -> y [rows, cols], rstd [rows]. Grid: one block per row.
template <class T, class G, Fault F>
__global__ void forward_row_kernel(Rows<T> x_rows, const G* __restrict__ gamma, T* __restrict__ y,
                                   accumulation_t<T>* __restrict__ rstd_out, std::int64_t rows,
                                   std::int64_t cols, accumulation_t<T> eps) {
  using A = accumulation_t<T>;
  __shared__ A scratch[kMaxThreads / kWarp];
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* x = x_rows.row(row);
    A square_sum = A(0);
    for (std::int64_t column = threadIdx.x; column < cols; column += blockDim.x) {
      const A value = widen(x[column]);
      square_sum += value * value;
    }
    square_sum = block_sum(square_sum, scratch);
    const A rstd = A(1) / sqrt(square_sum / static_cast<A>(cols) + eps);
    for (std::int64_t column = threadIdx.x; column < cols; column += blockDim.x) {
      narrow(widen(x[column]) * rstd * gamma_at<A>(gamma, column), y[row * cols + column]);
    }
    if (threadIdx.x == 0 && rstd_out != nullptr) rstd_out[row] = rstd;
  }
}

/// x, dy [rows, cols], rstd [rows] -> dx [rows, cols] and partials [rows, cols], the addends of
/// dgamma; either may be NULL and is then not computed. Grid: one block per row.
template <class T, class G, Fault F>
__global__ void backward_row_kernel(Rows<T> x_rows, Rows<T> dy_rows, const G* __restrict__ gamma,
                                    const accumulation_t<T>* __restrict__ rstd_in,
                                    T* __restrict__ dx, accumulation_t<T>* __restrict__ partials,
                                    std::int64_t rows, std::int64_t cols) {
  using A = accumulation_t<T>;
  __shared__ A scratch[kMaxThreads / kWarp];
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* x = x_rows.row(row);
    const T* dy = dy_rows.row(row);
    const A rstd = rstd_in[row];
    if (dx != nullptr) {
      A dot = A(0);
      for (std::int64_t column = threadIdx.x; column < cols; column += blockDim.x) {
        dot += widen(dy[column]) * gamma_at<A>(gamma, column) * widen(x[column]);
      }
      dot = block_sum(dot, scratch);
      // rstd * (u - x_hat * mean(u * x_hat)) is rstd*u - x*rstd^3*mean(u*x) with no factor that can
      // overflow alone.
      const A projection = rstd * (dot * rstd / static_cast<A>(cols));
      for (std::int64_t column = threadIdx.x; column < cols; column += blockDim.x) {
        const A u = widen(dy[column]) * gamma_at<A>(gamma, column);
        narrow(rstd * (u - widen(x[column]) * projection), dx[row * cols + column]);
      }
    }
    if (partials != nullptr) {
      for (std::int64_t column = threadIdx.x; column < cols; column += blockDim.x) {
        partials[row * cols + column] = widen(dy[column]) * (widen(x[column]) * rstd);
      }
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
  for (std::int64_t first = std::int64_t{blockIdx.x} * kSumColumns; first < cols;
       first += std::int64_t{gridDim.x} * kSumColumns) {
    const std::int64_t column = first + threadIdx.x;
    A sum = A(0);
    if (column < cols) {
      for (std::int64_t row = threadIdx.y; row < rows; row += kSumStrips)
        sum += partials[row * cols + column];
    }
    strips[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    for (int half = kSumStrips / 2; half > 0; half /= 2) {
      if (threadIdx.y < half)
        strips[threadIdx.y][threadIdx.x] += strips[threadIdx.y + half][threadIdx.x];
      __syncthreads();
    }
    if (threadIdx.y == 0 && column < cols) narrow(strips[0][threadIdx.x], dgamma[column]);
    __syncthreads();
  }
}

template <class T, class G, Fault F = Fault::none>
cudaError_t launch_rowwise_forward(const rmsnorm_forward_args& args) {
  using A = accumulation_t<T>;
  if (args.rows == 0) return cudaSuccess;  // a grid of no blocks is an error to CUDA
  const auto blocks = static_cast<unsigned>(args.rows < kMaxGrid ? args.rows : kMaxGrid);
  forward_row_kernel<T, G, F>
      <<<blocks, row_threads(args.cols), 0, static_cast<cudaStream_t>(args.stream)>>>(
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
    backward_row_kernel<T, G, F><<<blocks, row_threads(args.cols), 0, stream>>>(
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
