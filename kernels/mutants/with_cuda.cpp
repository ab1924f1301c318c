#include "kernels/implementations.h"
#include "kernels/mutants/passes.hpp"

namespace rmsnorm::kernels::cuda {

const rmsnorm_implementation* product(Original original) {
  return original == Original::tuned ? rmsnorm_tuned_cuda() : rmsnorm_rowwise_cuda();
}

}  // namespace rmsnorm::kernels::cuda
