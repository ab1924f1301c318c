#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

#include "bench/benchmark.hpp"
#include "core/report.hpp"

namespace rmsnorm::bench {

/// One entry of the report's `rows`. Of a row that was not timed, the times are null.
nlohmann::json row_json(const Row& row);

/// One line per case, pass and protocol, one column per implementation: `65.6 (1.02)`, the median
/// in us and its ratio to the copy's, or the state of a row that was not timed or not believed. The
/// first line is the heading.
std::vector<std::vector<std::string>> table_of(const std::vector<Row>& rows);

/// The same table as Markdown, with the machine, what was built and what was not timed.
std::string markdown(const std::vector<Row>& rows, const Environment& environment,
                     const Config& config);

}  // namespace rmsnorm::bench
