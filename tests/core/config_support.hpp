#pragma once

// A small config, edits of it, and what its reader says to them.

#include <cstddef>
#include <string>

#include "core/config.hpp"
#include "support/catch.hpp"

namespace config_test {

inline const std::string minimum_file = RMSNORM_SOURCE_DIR "/configs/minimum.yaml";

// Line 4 holds the implementations, 5 the cases, 9 the tolerance.
inline const std::string small =
    "schema: 1\n"
    "contract: full\n"
    "epsilon: 1.0e-6\n"
    "implementations: [rowwise]\n"
    "cases:\n"
    "  rows: [1, 3]\n"
    "  cols: [1, 256]\n"
    "  dtypes: [float32]\n"
    "tolerance:\n"
    "  float32: {atol: 1.0e-5, rtol: 1.0e-4}\n";

inline std::string error_of(const std::string& text) {
  try {
    rmsnorm::parse_config(text, "c.yaml");
  } catch (const rmsnorm::ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

inline std::string edited(const std::string& from, const std::string& to) {
  return replaced(small, from, to);
}

inline bool is_one_line(const std::string& text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  return true;
}

inline void check_error(const std::string& text, const std::string& beginning) {
  const std::string error = error_of(text);
  CAPTURE(text.substr(0, 400), error, beginning);
  CHECK(error.starts_with(beginning));
  CHECK(is_one_line(error));
  CHECK(error.find("; got ") != std::string::npos);
}

/// The section's lines, as in configs/minimum.yaml, behind the small config, which ends on line 10.
inline std::string with(const std::string& section) {
  return small + section;
}

}  // namespace config_test
