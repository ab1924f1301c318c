#include "bench/report.hpp"

#include <nlohmann/json.hpp>

#include "support/catch.hpp"

using namespace rmsnorm;
using namespace rmsnorm::bench;

namespace {

Row timed_row(std::string implementation, double median_us, double floor_us) {
  Row row;
  row.problem = {.rows = 128, .cols = 257};
  row.implementation = std::move(implementation);
  row.state = State::passed;
  row.time = {
      .median_us = median_us, .p10_us = median_us - 1, .p90_us = median_us + 1, .samples = 50};
  row.bytes = 263168;
  row.floor_us = floor_us;
  row.cache = "hot";
  return row;
}

}  // namespace

TEST_CASE("a row's JSON has the keys that stay", "[report]") {
  const nlohmann::json json = row_json(timed_row("rowwise", 30, 20));
  for (const char* key :
       {"rows", "cols", "dtype", "pass", "implementation", "protocol", "median_us", "p10_us",
        "p90_us", "samples", "bytes", "floor_us", "ratio_to_floor", "gamma", "layout", "state"}) {
    CAPTURE(key);
    REQUIRE(json.contains(key));
    CHECK_FALSE(json.at(key).is_null());
  }
  CHECK(json.at("pass") == "forward");
  CHECK(json.at("protocol") == "calls");
  CHECK(json.at("ratio_to_floor") == 1.5);
}

TEST_CASE("a row that was not timed has no numbers to be mistaken for times", "[report]") {
  Row row = timed_row("rowwise", 30, 20);
  row.time = {};
  row.state = State::failed;
  const nlohmann::json json = row_json(row);
  for (const char* key : {"median_us", "p10_us", "p90_us", "floor_us", "ratio_to_floor"}) {
    CAPTURE(key);
    CHECK(json.at(key).is_null());
  }
  CHECK(json.at("state") == "failed");
}

TEST_CASE("the table has a line per case, pass and protocol and a column per implementation",
          "[report]") {
  std::vector<Row> rows{timed_row("copy", 20, 20), timed_row("rowwise", 30, 20)};
  rows.push_back(timed_row("copy", 50, 50));
  rows.back().pass = Pass::forward_backward;
  rows.push_back(timed_row("aten", 0, 0));
  rows.back().pass = Pass::forward_backward;
  rows.back().time = {};
  rows.back().state = State::unimplemented;
  const auto table = table_of(rows);
  using Line = std::vector<std::string>;
  REQUIRE(table.size() == 3);
  CHECK(table[0] == Line{"case", "pass", "protocol", "copy", "rowwise", "aten"});
  CHECK(table[1] == Line{"128x257-float32", "forward", "calls", "20.0", "30.0 (1.50)", "-"});
  CHECK(table[2] ==
        Line{"128x257-float32", "forward_backward", "calls", "50.0", "-", "unimplemented"});
}

TEST_CASE("a time that is not believed says so where it stands", "[report]") {
  Row row = timed_row("rowwise", 30, 60);
  row.state = State::mistrusted;
  CHECK(table_of({row})[1][3] == "30.0 (0.50) mistrusted");
}

TEST_CASE("the Markdown names the machine and says why a row has no time", "[report]") {
  Row row = timed_row("aten", 0, 0);
  row.time = {};
  row.state = State::unimplemented;
  row.reason = "takes no such gamma";
  Environment environment;
  environment.device_name = "a card";
  environment.driver = "580.1";
  const std::string text = markdown({timed_row("copy", 20, 20), row}, environment, Config{});
  for (const char* piece :
       {"a card", "driver 580.1", "| 128x257-float32 | forward | calls | 20.0 |",
        "takes no such gamma"}) {
    CAPTURE(text);
    CHECK(text.find(piece) != std::string::npos);
  }
}
