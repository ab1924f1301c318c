#include "operator/huge_pages.hpp"

#include <sys/mman.h>

#include <cstdint>

namespace rmsnorm {

void use_huge_pages(void* data, std::size_t bytes) {
  constexpr std::size_t mapped_anew = std::size_t{32} << 20;
  constexpr std::uintptr_t page = 4096;
  if (bytes < mapped_anew) return;
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
  static_cast<void>(::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE));
}

}  // namespace rmsnorm
