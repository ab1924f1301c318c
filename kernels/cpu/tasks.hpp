#pragma once

#include <algorithm>
#include <cstdint>

#include "rmsnorm/implementation.h"

namespace rmsnorm::kernels::cpu {

/// Runs body(index) for index in [0, tasks) on the caller's executor, or here when there is none.
template <class Body>
void for_each_task(const rmsnorm_executor* executor, std::int64_t tasks, Body& body) {
  if (executor == nullptr || tasks <= 1) {
    for (std::int64_t i = 0; i < tasks; ++i) body(i);
    return;
  }
  executor->run(
      tasks, [](void* state, std::int64_t index) { (*static_cast<Body*>(state))(index); }, &body);
}

/// Cuts [0, count) into pieces of `grain` and runs body(begin, end) for each.
template <class Body>
void for_each_range(const rmsnorm_executor* executor, std::int64_t count, std::int64_t grain,
                    Body body) {
  auto task = [&](std::int64_t index) {
    const std::int64_t begin = index * grain;
    body(begin, std::min(count, begin + grain));
  };
  for_each_task(executor, (count + grain - 1) / grain, task);
}

}  // namespace rmsnorm::kernels::cpu
