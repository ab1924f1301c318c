#include "operator/counters.hpp"

#include <atomic>

namespace rmsnorm {
namespace {

std::atomic<std::int64_t> forward_calls{0}, backward_calls{0}, copied_tensors{0};

}  // namespace

void count_forward() {
  forward_calls.fetch_add(1, std::memory_order_relaxed);
}
void count_backward() {
  backward_calls.fetch_add(1, std::memory_order_relaxed);
}
void count_copy() {
  copied_tensors.fetch_add(1, std::memory_order_relaxed);
}

CallCounts call_counts() {
  return {forward_calls.load(), backward_calls.load(), copied_tensors.load()};
}

void reset_call_counts() {
  forward_calls = 0;
  backward_calls = 0;
  copied_tensors = 0;
}

}  // namespace rmsnorm
