#include "kernels/implementations.h"
#include "kernels/mutants/passes.hpp"

namespace rmsnorm::kernels::cuda {

const rmsnorm_implementation* product() {
  return rmsnorm_rowwise_cuda();
}

}  // namespace rmsnorm::kernels::cuda
