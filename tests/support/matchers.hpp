#pragma once

#include <string>

#include "support/catch.hpp"

namespace rmsnorm::test {

/// Text that has `part` somewhere; Catch2 2 and 3 name their matcher differently.
inline auto contains_text(const std::string& part) {
#if __has_include(<catch2/catch_all.hpp>)
  return Catch::Matchers::ContainsSubstring(part);
#else
  return Catch::Matchers::Contains(part);
#endif
}

}  // namespace rmsnorm::test
