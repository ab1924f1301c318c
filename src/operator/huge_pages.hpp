#pragma once

#include <cstddef>

namespace rmsnorm {

/// Asks the system for huge pages behind fresh memory [data, data + bytes) of the CPU. Allocations
/// of 32 MiB and more are mapped anew each time (the most that glibc's M_MMAP_THRESHOLD grows to),
/// and touching them page by page costs more than a pass over them. Advice: less memory than that,
/// a system without huge pages and one that refuses leave things as they are.
void use_huge_pages(void* data, std::size_t bytes);

}  // namespace rmsnorm
