#pragma once

// Private to core: the values that several sections of a config have.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "core/config_reader.hpp"

namespace rmsnorm {

inline constexpr std::int64_t max_elements =
    std::int64_t{1} << 60;  // of 8 bytes: a size in bytes still fits in 63 bits
inline constexpr std::int64_t max_count = 1'000'000'000;  // of steps, examples, calls

std::vector<std::string> read_implementations(const Value& list);

/// A number of rows or columns.
std::int64_t read_extent(const Value& value);

/// Refuses at `where` a shape that is too large for 64-bit sizes or outside the contract.
void require_shape(const Value& where, std::int64_t rows, std::int64_t cols, Contract contract);

std::vector<std::pair<std::int64_t, std::int64_t>> read_shapes(const Value& list,
                                                               Contract contract);

std::vector<Dtype> read_dtypes(const Value& list, Contract contract);

/// A kind of case of which contract minimum takes only `plain`.
template <class T>
T read_kind(const Value& value, std::initializer_list<T> kinds, T plain, Contract contract) {
  const T kind = value.one_of(kinds);
  if (contract == Contract::minimum && kind != plain) {
    value.refuse(std::string(name(plain)) + " under contract minimum");
  }
  return kind;
}

void read_benchmark(const Value& value, BenchmarkConfig& out, Contract contract);

}  // namespace rmsnorm
