#include "bench/timer.hpp"
#include "rmsnorm/errors.hpp"

namespace rmsnorm::bench {

std::unique_ptr<Timer> make_cuda_timer(const c10::Device&) {
  throw UnavailableError("benchmark: CUDA needs a build with CUDA kernels (preset cuda)");
}

const rmsnorm_implementation* cuda_copy_table() {
  return nullptr;
}

}  // namespace rmsnorm::bench
