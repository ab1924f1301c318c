// What the config's reader does with text, whatever the keys mean.

#include <filesystem>
#include <string>

#include "core/config.hpp"
#include "core/config_support.hpp"
#include "support/catch.hpp"

using namespace config_test;
using rmsnorm::ConfigError;
using rmsnorm::parse_config;

TEST_CASE("B036 a real number may be spelled in every decimal way and in no other") {
  for (const std::string spelling :
       {"1e-6", "1.0e-6", "1E-6", ".000001", "0.000001", "0.1e-5", "10e-7", "1.e-06"}) {
    CAPTURE(spelling);
    CHECK(parse_config(edited("1.0e-6", spelling), "c.yaml").epsilon == 1e-6);
  }
  for (const std::string spelling :
       {".nan", "nan", ".inf",   "-.inf",    "inf",    "0x1p-6", "0x1",   "1e999", "1e-999",
        "1,0",  "1e",  "e-6",    ".",        "1e-6f",  "01.0",   "+1e-6", "1_0",   "-1e-6",
        "0",    "0.0", "1e-6 2", "\"1e-6\"", "'1e-6'", "true",   "~",     "[1e-6]"}) {
    CAPTURE(spelling);
    check_error(edited("1.0e-6", spelling), "c.yaml:3: epsilon: a finite number above 0; got ");
  }
}

TEST_CASE("a whole number is decimal digits within its range") {
  const auto rows_error = [](const std::string& spelling) {
    return error_of(edited("[1, 3]", "[1, " + spelling + "]"));
  };
  for (const std::string spelling :
       {"0", "-1", "+3", "03", "0x3", "0o3", "3.0", "3e0", "1_000", "1099511627777",
        "99999999999999999999", "\"3\"", "three", "3 4", "~", ".inf"}) {
    CAPTURE(spelling, rows_error(spelling));
    CHECK(rows_error(spelling).starts_with(
        "c.yaml:6: cases.rows[1]: a whole number from 1 to 1099511627776; got "));
  }
  CHECK(rows_error("1099511627776") == "accepted");
  CHECK(parse_config(with("seed: 0\n"), "c").seed == 0);
  CHECK(parse_config(with("seed: 9223372036854775807\n"), "c").seed == 9223372036854775807u);
  check_error(with("seed: 9223372036854775808\n"),
              "c.yaml:11: seed: a whole number from 0 to 9223372036854775807");
  check_error(with("seed: -1\n"),
              "c.yaml:11: seed: a whole number from 0 to 9223372036854775807; got -1");
}

TEST_CASE("repetitions in a list are refused") {
  check_error(edited("[1, 3]", "[1, 3, 1]"),
              "c.yaml:6: cases.rows[2]: every entry once; got 1 again");
  check_error(edited("[float32]", "[float32, float32]"),
              "c.yaml:8: cases.dtypes[1]: every entry once; got float32 again");
  check_error(edited("[rowwise]", "\n  - aten\n  - aten"),
              "c.yaml:6: implementations[1]: every entry once; got aten again");
  check_error(with("benchmark: {shapes: [[1, 2], [1, 2]]}\n"),
              "c.yaml:11: benchmark.shapes[1]: every entry once");
}

TEST_CASE("anchors, aliases and tags are refused where they stand") {
  check_error(edited("[1, 3]", "&r [1, 3]"),
              "c.yaml:6: cases.rows: a plain value without anchor, alias or tag; got an anchor");
  check_error(edited("[1, 3]\n  cols: [1, 256]", "&r [1, 3]\n  cols: *r"),
              "c.yaml:6: cases.rows: a plain value");
  check_error(edited("schema: 1", "&k schema: 1"),
              "c.yaml:1: schema: a plain value without anchor");
  check_error(edited("epsilon: 1.0e-6", "epsilon: !!float 1.0e-6"),
              "c.yaml:3: epsilon: a plain value without anchor, alias or tag; got the tag "
              "tag:yaml.org,2002:float");
  check_error(edited("[rowwise]", "!x [rowwise]"),
              "c.yaml:4: implementations: a plain value without anchor, alias or tag");
  check_error(edited("{atol", "!!map {atol"),
              "c.yaml:10: tolerance.float32: a plain value without");
  check_error("&a\n" + small,
              "c.yaml:1: config: a plain value without anchor, alias or tag; got an anchor");
  check_error(edited("[1, 3]", "[1, *nowhere]"), "c.yaml:6: config: valid YAML; got ");
}

TEST_CASE("text that is not one YAML document is refused") {
  check_error(small + "---\n" + small,
              "c.yaml:11: config: one YAML document; got a second document");
  check_error(edited("[1, 3]", "[1, 3"), "c.yaml:7: config: valid YAML; got ");
  check_error(edited("[1, 3]", "]"), "c.yaml:6: config: valid YAML; got ");
  check_error(edited("  cols", "\tcols"), "c.yaml:7: config: valid YAML; got ");
  check_error(edited("schema: 1", "schema: \"1"), "c.yaml:");
  CHECK(error_of("---\n" + small + "...\n") == "accepted");
  CHECK(error_of("\xef\xbb\xbf" + small) == "accepted");
  std::string crlf;
  for (const char c : small) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  CHECK(error_of(crlf) == "accepted");
}

TEST_CASE("bytes that are not text are refused at their line") {
  for (const std::string& bytes :
       {std::string("\xff"), std::string("\xc0\x80"), std::string("\xed\xa0\x80"),
        std::string("\xe2\x82"), std::string(1, '\0'), std::string("\xf5\x80\x80\x80")}) {
    check_error(edited("epsilon", "# " + bytes + "\nepsilon"),
                "c.yaml:3: config: UTF-8 text without NUL bytes; got byte \\x");
  }
  CHECK(error_of(small + "# \xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82\n") == "accepted");
}

TEST_CASE("texts that are too long or too deep are refused without harm") {
  check_error(small + std::string(1 << 20, '#'), "c.yaml:1: config: at most 1 MiB; got more");
  const auto repeated = [](const std::string& piece, std::size_t times) {
    std::string text;
    for (std::size_t i = 0; i < times; ++i) text += piece;
    return text;
  };
  for (const std::string piece : {"[", "{", "- ", "? ", "{a: ", "[{a: ", "[? ", "{? "}) {
    CAPTURE(piece);
    check_error(repeated(piece, 100'000), "c.yaml:");
  }
  std::string indented;
  for (std::size_t depth = 0; depth < 40; ++depth) indented += std::string(depth, ' ') + "a:\n";
  check_error(indented + std::string(40, ' ') + "b: 1\n",
              "c.yaml:33: config: at most 32 levels of nesting; got more");
}

TEST_CASE("what came is shown on one line and cut") {
  const std::string long_text = error_of(edited("full", std::string(500, 'x')));
  CHECK(long_text ==
        "c.yaml:2: contract: one of minimum, full; got " + std::string(60, 'x') + "...");
  check_error(
      edited("full", "\"a\\n\\e[31mb\\u0085\\0\""),
      "c.yaml:2: contract: one of minimum, full; got the text \"a\\n\\x1b[31mb\\x85\\x00\"");
  check_error(with("\"k\\ney\": 1\n"), "c.yaml:11: k\\ney: a key of schema");
  CHECK_THROWS_AS(parse_config("", "a\nb"), ConfigError);
  try {
    parse_config("", "a\nb");
  } catch (const ConfigError& error) {
    CHECK(is_one_line(error.what()));
  }
}

TEST_CASE("a config file that is missing is told from one that cannot be used") {
  CHECK_THROWS_AS(rmsnorm::read_config("no/such/file.yaml"), rmsnorm::MissingFileError);
  CHECK_THROWS_AS(rmsnorm::read_config(minimum_file + "/below"), rmsnorm::MissingFileError);
  CHECK_THROWS_AS(rmsnorm::read_config(std::filesystem::temp_directory_path()), ConfigError);
  CHECK_THROWS_AS(rmsnorm::read_config("/dev/zero"), ConfigError);
  CHECK_THROWS_AS(rmsnorm::read_config("/dev/null"), ConfigError);
}
