#include "operator/huge_pages.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "support/catch.hpp"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class Mapping {
 public:
  explicit Mapping(std::size_t bytes)
      : bytes_(bytes),
        data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(data_ != MAP_FAILED);
  }
  ~Mapping() { ::munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

/// The flags of the mapping around `address`; empty where the system does not tell.
std::string flags_at(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin <= wanted && wanted < end;
    } else if (inside && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return {};
}

bool advised(const void* address) {
  return flags_at(address).find(" hg ") != std::string::npos;
}

bool system_has_huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  return static_cast<bool>(file);
}

}  // namespace

TEST_CASE("memory that is mapped anew for every call is asked to be in huge pages, less is not",
          "[memory]") {
  const Mapping enough(40 * kMiB), too_little(40 * kMiB);
  if (flags_at(enough.data()).empty() || !system_has_huge_pages()) {
    WARN("the system does not tell whether memory is in huge pages: left out");
    return;
  }
  REQUIRE_FALSE(advised(enough.data() + kMiB));
  // As an allocator returns it: not at a page's start.
  rmsnorm::use_huge_pages(enough.data() + 64, 32 * kMiB);
  rmsnorm::use_huge_pages(too_little.data() + 64, 32 * kMiB - 1);
  CHECK(advised(enough.data() + kMiB));
  CHECK(advised(enough.data() + 31 * kMiB));
  CHECK_FALSE(advised(enough.data()));              // its first page is partly another's
  CHECK_FALSE(advised(enough.data() + 33 * kMiB));  // and so is all behind
  CHECK_FALSE(advised(too_little.data() + kMiB));
}

TEST_CASE("advice about memory that is none changes nothing", "[memory]") {
  rmsnorm::use_huge_pages(nullptr, 0);
  rmsnorm::use_huge_pages(nullptr, 64 * kMiB);
  SUCCEED();
}
