/* Kernels that the benchmark measures with: copies, cache flushes, a wait. CUDA only. Each enqueues
 * on `stream` (cudaStream_t) and returns a cudaError_t. */
#ifndef RMSNORM_KERNELS_BENCH_H
#define RMSNORM_KERNELS_BENCH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* to = from. Both aligned to 16 bytes, not overlapping. */
int32_t rmsnorm_bench_copy(void* to, const void* from, int64_t bytes, void* stream);

/* to = a ^ b: two reads, one write. All aligned to 16 bytes, `to` overlaps nothing. */
int32_t rmsnorm_bench_combine(void* to, const void* a, const void* b, int64_t bytes, void* stream);

/* Reads every byte of a zeroed buffer; `sink`, 4 bytes, keeps the reads from being optimised away.
 * bytes: a multiple of 16. */
int32_t rmsnorm_bench_read(const void* buffer, int64_t bytes, void* sink, void* stream);

/* The same, and asks L2 to give up these bytes after all others, as a kernel may. */
int32_t rmsnorm_bench_read_to_keep(const void* buffer, int64_t bytes, void* sink, void* stream);

/* Writes zeros to every byte. bytes: a multiple of 16. */
int32_t rmsnorm_bench_write(void* buffer, int64_t bytes, void* stream);

/* Keeps the stream busy for about `nanoseconds`, touching no memory. */
int32_t rmsnorm_bench_spin(int64_t nanoseconds, void* stream);

#ifdef __cplusplus
}
#endif

#endif
