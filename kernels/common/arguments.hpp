#pragma once

#include <cstdint>

#include "rmsnorm/implementation.h"

#ifdef __CUDACC__
#define RMSNORM_HOST_DEVICE __host__ __device__
#else
#define RMSNORM_HOST_DEVICE
#endif

namespace rmsnorm::kernels {

/// The typed form of rmsnorm_rows.
template <class T>
struct Rows {
  const T* data;
  std::int64_t inner_rows, inner_stride, outer_stride;

  explicit Rows(const rmsnorm_rows& rows)
      : data(static_cast<const T*>(rows.data)),
        inner_rows(rows.inner_rows),
        inner_stride(rows.inner_stride),
        outer_stride(rows.outer_stride) {}

  RMSNORM_HOST_DEVICE const T* row(std::int64_t index) const {
    return data + (index / inner_rows) * outer_stride + (index % inner_rows) * inner_stride;
  }
};

/// Bytes of one number of the type that sums over `dtype` are kept in.
inline std::int64_t accumulation_bytes(std::int32_t dtype) {
  return dtype == RMSNORM_FLOAT64 ? 8 : 4;
}

/// Bytes of the [rows, cols] partial products that a row-by-row backward leaves for its second
/// pass.
inline std::size_t row_partials_bytes(const rmsnorm_backward_args& args) {
  if (args.dgamma == nullptr) return 0;
  return static_cast<std::size_t>(args.rows) * static_cast<std::size_t>(args.cols) *
         static_cast<std::size_t>(accumulation_bytes(args.x.dtype));
}

/// Calls `run` with value-initialised x and gamma elements of the dtypes of `args`, as the types
/// that `Types` gives them; RMSNORM_UNSUPPORTED for a pair outside the contract. Without gamma the
/// gamma type is x's.
template <class Types, class Args, class Run>
std::int32_t dispatch_dtypes(const Args& args, Run run) {
  using F64 = typename Types::float64;
  using F32 = typename Types::float32;
  using F16 = typename Types::float16;
  using BF16 = typename Types::bfloat16;
  const std::int32_t x = args.x.dtype;
  const bool same = args.gamma_dtype == x || args.gamma_dtype == RMSNORM_NO_DTYPE;
  const bool wide = args.gamma_dtype == RMSNORM_FLOAT32;
  if (x == RMSNORM_FLOAT64 && same) return run(F64{}, F64{});
  if (x == RMSNORM_FLOAT32 && same) return run(F32{}, F32{});
  if (x == RMSNORM_FLOAT16 && same) return run(F16{}, F16{});
  if (x == RMSNORM_FLOAT16 && wide) return run(F16{}, F32{});
  if (x == RMSNORM_BFLOAT16 && same) return run(BF16{}, BF16{});
  if (x == RMSNORM_BFLOAT16 && wide) return run(BF16{}, F32{});
  return RMSNORM_UNSUPPORTED;
}

/// Whether dispatch_dtypes takes the pair: the refusal functions of the tables.
template <class Args>
const char* dtype_refusal(const Args* args) {
  const std::int32_t x = args->x.dtype, gamma = args->gamma_dtype;
  const bool known = x >= RMSNORM_FLOAT64 && x <= RMSNORM_BFLOAT16;
  const bool half = x == RMSNORM_FLOAT16 || x == RMSNORM_BFLOAT16;
  if (known && (gamma == x || gamma == RMSNORM_NO_DTYPE || (half && gamma == RMSNORM_FLOAT32)))
    return nullptr;
  return "takes float64, float32, float16 and bfloat16 with gamma of the same dtype or float32 "
         "beside 16 bits";
}

}  // namespace rmsnorm::kernels
