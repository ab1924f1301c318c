#pragma once

#include "rmsnorm/counters.hpp"

namespace rmsnorm {

void count_forward();
void count_backward();
void count_copy();

}  // namespace rmsnorm
