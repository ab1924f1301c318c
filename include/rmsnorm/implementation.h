/* The seam between an RMSNorm implementation and everything that uses one: a table of plain
 * functions over plain structs. C, so that a kernel in any language can fill it; no framework and
 * no CUDA header.
 *
 * The operation, per row m of `cols` elements (sums in float32; in float64 for float64 x):
 *   rstd[m] = 1 / sqrt(mean(x[m]^2) + eps); y[m] = x[m] * rstd[m] * gamma, rounded to x's dtype
 *   u = dy[m] * gamma; dx[m] = rstd * u - x[m] * rstd^3 * mean(u * x[m]), rounded to x's dtype
 *   dgamma = sum over m of dy[m] * x[m] * rstd[m], rounded once to gamma's dtype
 */
#ifndef RMSNORM_IMPLEMENTATION_H
#define RMSNORM_IMPLEMENTATION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a struct below changes its layout or meaning. */
#define RMSNORM_ABI_VERSION 1u

enum rmsnorm_dtype {
  RMSNORM_FLOAT64 = 0,
  RMSNORM_FLOAT32 = 1,
  RMSNORM_FLOAT16 = 2,
  RMSNORM_BFLOAT16 = 3,
  RMSNORM_NO_DTYPE = -1 /* gamma_dtype where there is no gamma */
};

enum rmsnorm_device_type { RMSNORM_CPU = 0, RMSNORM_CUDA = 1 };

/* What a call returns: zero, one of these, or a positive code of the device's own runtime
 * (cudaError_t). */
enum rmsnorm_status {
  RMSNORM_OK = 0,
  RMSNORM_UNSUPPORTED = -1, /* the table's refusal function would have said so */
  RMSNORM_WORKSPACE = -2    /* workspace missing or smaller than asked for */
};

/* Read-only rows of adjacent elements. Row m starts at element
 *   (m / inner_rows) * outer_stride + (m % inner_rows) * inner_stride
 * so a [tokens, heads, dim] slice of a fused qkv needs no copy. Strides may be zero (an expanded
 * dy). */
typedef struct rmsnorm_rows {
  const void* data;
  int64_t inner_rows; /* >= 1; dense rows: any, with outer_stride = inner_rows * inner_stride */
  int64_t inner_stride;
  int64_t outer_stride;
  int32_t dtype;
} rmsnorm_rows;

/* Threads lent by the caller to a CPU implementation: runs task(state, i) once for every i in [0,
 * tasks), in any order, on any thread, and returns when all are done. */
typedef struct rmsnorm_executor {
  int32_t threads;
  void (*run)(int64_t tasks, void (*task)(void* state, int64_t index), void* state);
} rmsnorm_executor;

typedef struct rmsnorm_forward_args {
  int64_t rows, cols;
  rmsnorm_rows x;      /* [rows, cols] */
  const void* gamma;   /* [cols], adjacent; NULL: no gamma, none is multiplied */
  int32_t gamma_dtype; /* x's dtype, or float32 with 16-bit x, or RMSNORM_NO_DTYPE */
  void* y;             /* [rows, cols] dense, x's dtype; overlaps nothing */
  void* rstd;          /* [rows] float32 (float64 for float64 x); NULL: not wanted */
  double eps;
  void* workspace; /* forward_workspace_bytes(args) bytes, aligned to 256; contents undefined */
  size_t workspace_bytes;
  void* stream;                     /* cudaStream_t; unused on the CPU */
  const rmsnorm_executor* executor; /* NULL: the calling thread alone; unused on CUDA */
} rmsnorm_forward_args;

typedef struct rmsnorm_backward_args {
  int64_t rows, cols;
  rmsnorm_rows x, dy; /* [rows, cols], one dtype */
  const void* gamma;
  int32_t gamma_dtype;
  const void* rstd; /* [rows], as the forward wrote it */
  void* dx;         /* [rows, cols] dense, x's dtype; NULL: not wanted, and then not computed */
  void* dgamma;     /* [cols], gamma's dtype; NULL: not wanted, and then not computed */
  double eps;
  void* workspace; /* backward_workspace_bytes(args) bytes */
  size_t workspace_bytes;
  void* stream;
  const rmsnorm_executor* executor;
} rmsnorm_backward_args;

/* One implementation on one kind of device. Guarantees that every built-in one gives and the checks
 * test: every element of every wanted output is written and nothing else is; inputs are left as
 * they were; the bits of a row of y do not depend on the other rows; the bits of dx and dgamma do
 * not change from run to run. Calls only enqueue on `stream` (CUDA) and may come from any thread.
 */
typedef struct rmsnorm_implementation {
  uint32_t abi_version; /* RMSNORM_ABI_VERSION */
  int32_t device_type;
  const char* name;
  const char* summary; /* one line: the design */

  /* Why the call is refused, as a phrase, or NULL when it is taken. Looks at sizes and dtypes, not
   * at pointers. May be NULL: takes everything. */
  const char* (*forward_refusal)(const rmsnorm_forward_args*);
  const char* (*backward_refusal)(const rmsnorm_backward_args*);

  /* Scratch that the call needs, asked with the very args of the call, complete but for the
   * workspace. May be NULL: none. */
  size_t (*forward_workspace_bytes)(const rmsnorm_forward_args*);
  size_t (*backward_workspace_bytes)(const rmsnorm_backward_args*);

  int32_t (*forward)(const rmsnorm_forward_args*);
  int32_t (*backward)(const rmsnorm_backward_args*);

  /* The text of a positive status. May be NULL. */
  const char* (*error_text)(int32_t status);
} rmsnorm_implementation;

/* What a plug-in exports under the name "rmsnorm_plugin": its table for a device type, or NULL if
 * it has none or does not speak this ABI version. The table lives as long as the library is loaded.
 */
typedef const rmsnorm_implementation* (*rmsnorm_plugin_function)(uint32_t abi_version,
                                                                 int32_t device_type);

#ifdef __cplusplus
}
#endif

#endif
