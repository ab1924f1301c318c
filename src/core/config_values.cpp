#include "core/config_values.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/contract.hpp"

namespace rmsnorm {
namespace {

using Shape = std::pair<std::int64_t, std::int64_t>;

constexpr std::int64_t max_extent = std::int64_t{1} << 40;

bool has_control_character(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

std::optional<std::string> parse_implementation(std::string_view text) {
  for (const std::string_view known : {"reference", "rowwise", "tuned", "aten"}) {
    if (text == known) return std::string(text);
  }
  for (const std::string_view prefix : {"plugin:", "mutant:"}) {
    const bool has_rest = text.starts_with(prefix) && text.size() > prefix.size();
    if (has_rest && !has_control_character(text)) return std::string(text);
  }
  return std::nullopt;
}

Shape read_shape(const Value& value) {
  if (!value.is_list() || value.node().items.size() != 2) value.refuse("a pair [rows, cols]");
  const std::vector<Value> extents = value.entries("numbers");
  return {read_extent(extents[0]), read_extent(extents[1])};
}

Dtype read_dtype(const Value& value, Contract contract) {
  const Dtype dtype =
      value.one_of({Dtype::float64, Dtype::float32, Dtype::float16, Dtype::bfloat16});
  if (contract == Contract::minimum && dtype != Dtype::float32 && dtype != Dtype::float16) {
    value.refuse("one of float32, float16 under contract minimum");
  }
  return dtype;
}

}  // namespace

std::vector<std::string> read_implementations(const Value& list) {
  return list.distinct("names", [](const Value& entry) {
    return entry.parsed("one of reference, rowwise, tuned, aten, plugin:PATH, mutant:NAME",
                        parse_implementation);
  });
}

std::int64_t read_extent(const Value& value) {
  return value.integer(1, max_extent);
}

void require_shape(const Value& where, std::int64_t rows, std::int64_t cols, Contract contract) {
  const auto refuse = [&](std::string_view allowed) {
    where.refuse(allowed, fmt::format("{} x {}", rows, cols));
  };
  if (rows > max_elements / cols) refuse("rows * cols of at most 2^60");
  if (contract == Contract::full) return;
  if (cols > kMinimumMaxCols) {
    refuse(fmt::format("at most {} columns under contract minimum", kMinimumMaxCols));
  }
  if (rows > kMinimumMaxScratchBytes / 4 / cols) {
    refuse("rows * cols * 4 bytes of at most 64 MiB under contract minimum");
  }
}

std::vector<Shape> read_shapes(const Value& list, Contract contract) {
  return list.distinct("pairs [rows, cols]", [contract](const Value& entry) {
    const Shape shape = read_shape(entry);
    require_shape(entry, shape.first, shape.second, contract);
    return shape;
  });
}

std::vector<Dtype> read_dtypes(const Value& list, Contract contract) {
  return list.distinct("dtypes",
                       [contract](const Value& entry) { return read_dtype(entry, contract); });
}

}  // namespace rmsnorm
