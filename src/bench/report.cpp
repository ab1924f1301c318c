#include "bench/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace rmsnorm::bench {
namespace {

std::string micros(double value) {
  return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 1000 ? 1 : 0);
}

std::string cell(const Row& row) {
  if (!row.timed()) return std::string(name(row.state));
  std::string text = micros(row.time.median_us);
  if (row.implementation != kCopy && row.implementation != kFloor && row.floor_us > 0) {
    text += fmt::format(" ({:.2f})", row.ratio_to_floor());
  }
  if (row.state != State::passed) text += fmt::format(" {}", name(row.state));
  return text;
}

bool same_line(const Row& a, const Row& b) {
  return a.problem.name() == b.problem.name() && a.pass == b.pass && a.protocol == b.protocol;
}

std::vector<std::string> columns_of(const std::vector<Row>& rows) {
  std::vector<std::string> columns;
  for (const Row& row : rows) {
    if (std::find(columns.begin(), columns.end(), row.implementation) == columns.end()) {
      columns.push_back(row.implementation);
    }
  }
  return columns;
}

std::string markdown_line(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& text : cells) line += " " + text + " |";
  return line + "\n";
}

}  // namespace

nlohmann::json row_json(const Row& row) {
  const auto if_timed = [&row](nlohmann::json value) {
    return row.timed() ? value : nlohmann::json();
  };
  const bool has_floor = row.timed() && row.floor_us > 0;
  const bool has_empty = row.timed() && row.empty_us > 0;
  return {{"rows", row.problem.rows},
          {"cols", row.problem.cols},
          {"dtype", name(row.problem.dtype)},
          {"gamma", name(row.problem.gamma)},
          {"layout", name(row.problem.layout)},
          {"pass", name(row.pass)},
          {"implementation", row.implementation},
          {"protocol", name(row.protocol)},
          {"state", name(row.state)},
          {"reason", row.reason},
          {"median_us", if_timed(row.time.median_us)},
          {"p10_us", if_timed(row.time.p10_us)},
          {"p90_us", if_timed(row.time.p90_us)},
          {"samples", row.time.samples},
          {"bytes", row.bytes},
          {"floor_us", has_floor ? nlohmann::json(row.floor_us) : nlohmann::json()},
          {"ratio_to_floor", has_floor ? nlohmann::json(row.ratio_to_floor()) : nlohmann::json()},
          {"ratio_to_empty", has_empty ? nlohmann::json(row.ratio_to_empty()) : nlohmann::json()},
          {"cache", row.cache},
          {"buffers", row.buffers}};
}

std::vector<std::vector<std::string>> table_of(const std::vector<Row>& rows) {
  const std::vector<std::string> columns = columns_of(rows);
  std::vector<std::vector<std::string>> table{{"case", "pass", "protocol"}};
  table.front().insert(table.front().end(), columns.begin(), columns.end());
  const Row* last = nullptr;
  for (const Row& row : rows) {
    if (last == nullptr || !same_line(*last, row)) {
      table.push_back(
          {row.problem.name(), std::string(name(row.pass)), std::string(name(row.protocol))});
      table.back().resize(3 + columns.size(), "-");
    }
    const auto column = std::find(columns.begin(), columns.end(), row.implementation);
    table.back()[3 + static_cast<std::size_t>(column - columns.begin())] = cell(row);
    last = &row;
  }
  return table;
}

std::string markdown(const std::vector<Row>& rows, const Environment& environment,
                     const Config& config) {
  const ToolInfo tool = tool_info();
  std::string text = fmt::format(
      "# Benchmark\n\n{}{}, libtorch {}, {} threads; rmsnorm {}, git {}{}, {}.\n"
      "{} samples after {} warm-up calls; {} calls per sample in `calls` and `graph`, one in "
      "`cold`.\n\n"
      "Medians in us; in brackets the ratio to `copy`, the same bytes (2bMN forward, 3bMN "
      "backward) "
      "through a copy in the same protocol.\n\n",
      environment.device_name,
      environment.driver.empty()
          ? std::string()
          : fmt::format(", driver {}, CUDA {}", environment.driver, environment.cuda_runtime),
      environment.libtorch, environment.threads, tool.version, tool.git,
      tool.dirty ? " (modified)" : "", tool.build_type, config.benchmark.samples,
      config.benchmark.warmup_calls, config.benchmark.calls_per_sample);
  const auto table = table_of(rows);
  for (std::size_t i = 0; i < table.size(); ++i) {
    text += markdown_line(table[i]);
    if (i > 0) continue;
    text += "|---|---|---|";
    for (std::size_t column = 3; column < table[i].size(); ++column) text += "--:|";
    text += "\n";
  }
  std::string notes;
  for (const Row& row : rows) {
    if (row.state == State::passed) continue;
    notes += fmt::format("- {} {} {} {}: {}: {}\n", row.implementation, row.problem.name(),
                         name(row.pass), name(row.protocol), name(row.state), row.reason);
  }
  return notes.empty() ? text : text + "\n" + notes;
}

}  // namespace rmsnorm::bench
