/* The tables of the built-in kernels. */
#ifndef RMSNORM_KERNELS_IMPLEMENTATIONS_H
#define RMSNORM_KERNELS_IMPLEMENTATIONS_H

#include "rmsnorm/implementation.h"

#ifdef __cplusplus
extern "C" {
#endif

const rmsnorm_implementation* rmsnorm_rowwise_cpu(void);
/* For the widest vectors that this processor has. */
const rmsnorm_implementation* rmsnorm_tuned_cpu(void);

/* Only in builds with CUDA. */
const rmsnorm_implementation* rmsnorm_rowwise_cuda(void);
const rmsnorm_implementation* rmsnorm_tuned_cuda(void);

/* Whether this build's kernels can run on the current device: cudaSuccess, or why not
 * (cudaErrorNoKernelImageForDevice when it was built for others). */
int32_t rmsnorm_cuda_probe(void);
/* The architectures that the kernels were compiled for, e.g. "80;90". */
const char* rmsnorm_cuda_architectures(void);

#ifdef __cplusplus
}
#endif

#endif
