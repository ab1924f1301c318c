#include <ATen/Parallel.h>

#include "operator/kernels.hpp"

namespace rmsnorm {
namespace {

void run(std::int64_t tasks, void (*task)(void*, std::int64_t), void* state) {
  at::parallel_for(0, tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index) task(state, index);
  });
}

}  // namespace

const rmsnorm_executor& cpu_executor() {
  thread_local rmsnorm_executor executor{1, run};
  executor.threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  return executor;
}

}  // namespace rmsnorm
