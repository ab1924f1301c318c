#include "mutants/mutation.hpp"

#include <algorithm>
#include <functional>
#include <sstream>

namespace rmsnorm::test {
namespace {

using Texts = std::vector<std::string>;

std::size_t below(Generator& random, std::size_t limit) {
  return limit == 0 ? 0 : std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
}

Texts lines_of(const std::string& text) {
  Texts lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  if (lines.empty()) lines.emplace_back();
  return lines;
}

std::string joined(const Texts& lines, const std::string& end = "\n") {
  std::string text;
  for (const std::string& line : lines) text += line + end;
  return text;
}

std::string repeated(const std::string& piece, std::size_t count) {
  std::string text;
  text.reserve(piece.size() * count);
  for (std::size_t i = 0; i < count; ++i) text += piece;
  return text;
}

std::string odd_value(Generator& random) {
  static const Texts values = {"",
                               "~",
                               "null",
                               "true",
                               "yes",
                               "nan",
                               ".nan",
                               ".inf",
                               "-.inf",
                               "inf",
                               "0",
                               "-0",
                               "-1",
                               "+1",
                               "007",
                               "0x10",
                               "0o17",
                               "0b1",
                               "1_000",
                               "1,000",
                               "1e3",
                               "1e400",
                               "-1e400",
                               "1e-400",
                               "1.",
                               ".5",
                               "1.5",
                               "9223372036854775807",
                               "9223372036854775808",
                               "18446744073709551616",
                               "99999999999999999999999999999999999999",
                               "[]",
                               "{}",
                               "[[]]",
                               "[1",
                               "{a: 1",
                               "[1, 1]",
                               "[,]",
                               "{a: 1, a: 2}",
                               "{? a : b}",
                               "? a",
                               "&a 1",
                               "*a",
                               "&a [*a]",
                               "<<: *a",
                               "!!int 1",
                               "!!str 1",
                               "!!binary aGk=",
                               "!<tag:x> 1",
                               "\"1\"",
                               "'1'",
                               "\"",
                               "'",
                               "\"\\x00\"",
                               "\"\\u0000\"",
                               "\"\\ud800\"",
                               "|",
                               ">",
                               "|9",
                               "|-\n x",
                               "%YAML 9.9",
                               "---",
                               "...",
                               "- 1",
                               "a: b: c",
                               ": ",
                               "#",
                               " # x",
                               "\t",
                               "\t1",
                               "@",
                               "`",
                               "float32",
                               "cuda:999999999999",
                               "plugin:",
                               "mutant:\x01",
                               "2001-01-01",
                               "\xEF\xBF\xBF",
                               "\xF0\x9F\x92\xA9",
                               "\xC3\x28",
                               "\xED\xA0\x80",
                               "\xFE",
                               "\x7F",
                               "[[1, 1099511627776]]",
                               "[1099511627776]",
                               "1 2",
                               "cols",
                               "%"};
  return values[below(random, values.size())];
}

void flip_bytes(std::string& text, Generator& random) {
  for (std::size_t i = below(random, 8) + 1; i > 0 && !text.empty(); --i)
    text[below(random, text.size())] = static_cast<char>(below(random, 256));
}

void flip_bits(std::string& text, Generator& random) {
  for (std::size_t i = below(random, 4) + 1; i > 0 && !text.empty(); --i)
    text[below(random, text.size())] ^= static_cast<char>(1u << below(random, 8));
}

void delete_line(std::string& text, Generator& random) {
  Texts lines = lines_of(text);
  lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(below(random, lines.size())));
  text = joined(lines);
}

void repeat_line(std::string& text, Generator& random) {
  Texts lines = lines_of(text);
  const std::string line = lines[below(random, lines.size())];
  lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(below(random, lines.size() + 1)), line);
  text = joined(lines);
}

void swap_lines(std::string& text, Generator& random) {
  Texts lines = lines_of(text);
  std::swap(lines[below(random, lines.size())], lines[below(random, lines.size())]);
  text = joined(lines);
}

void indent_line(std::string& text, Generator& random) {
  Texts lines = lines_of(text);
  std::string& line = lines[below(random, lines.size())];
  if (below(random, 2) == 0) {
    line.insert(0, below(random, 2) == 0 ? "  " : "\t");
  } else {
    line.erase(0, std::min<std::size_t>(2, line.size()));
  }
  text = joined(lines);
}

/// What stands behind a colon, or between two separators.
void change_value(std::string& text, Generator& random, const std::string& value) {
  const std::size_t start = below(random, text.size());
  std::size_t begin = text.find_first_of(":,[{", start);
  if (begin == std::string::npos) begin = text.find_first_of(":,[{");
  if (begin == std::string::npos) return;
  const std::size_t end = std::min(text.find_first_of(",]}\n", begin + 1), text.size());
  text.replace(begin + 1, end - begin - 1, " " + value);
}

void retype_value(std::string& text, Generator& random) {
  change_value(text, random, odd_value(random));
}

void nest_deeply(std::string& text, Generator& random) {
  static const std::pair<const char*, const char*> brackets[] = {
      {"[", "]"}, {"{a: ", "}"}, {"[{a: ", "}]"}, {"- ", ""}, {"[", ""}};
  const auto& [open, close] = brackets[below(random, 5)];
  const std::size_t depth = std::size_t{1} << below(random, 14);
  change_value(text, random, repeated(open, depth) + "1" + repeated(close, depth));
}

void add_anchors(std::string& text, Generator& random) {
  std::string laughs = "a0: &a0 [x, x]\n";
  for (std::size_t i = 1; i <= below(random, 30) + 1; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    const std::string mine = std::to_string(i);
    laughs += "a" + mine + ": &a" + mine + " [" + last + ", " + last + ", " + last + "]\n";
  }
  if (below(random, 2) == 0) {
    text = laughs + text;
  } else {
    text += laughs;
  }
}

void change_key(std::string& text, Generator& random) {
  const std::size_t colon = text.find(':', below(random, text.size()));
  if (colon == std::string::npos || colon == 0) return;
  text[colon - 1] = static_cast<char>('a' + below(random, 26));
}

void insert_piece(std::string& text, Generator& random) {
  text.insert(below(random, text.size() + 1), odd_value(random));
}

void truncate(std::string& text, Generator& random) {
  text.resize(below(random, text.size() + 1));
}

void encode_otherwise(std::string& text, Generator& random) {
  const std::size_t kind = below(random, 8);
  std::string coded;
  if (kind <= 3) {  // UTF-16, either order, with or without a mark
    if (kind % 2 == 0) coded = kind == 0 ? "\xFF\xFE" : "\xFE\xFF";
    for (const char c : text) coded += kind < 2 ? std::string{c, '\0'} : std::string{'\0', c};
  } else if (kind == 4) {
    coded = "\xEF\xBB\xBF" + text;
  } else if (kind == 5) {
    coded = joined(lines_of(text), "\r\n");
  } else if (kind == 6) {
    coded = joined(lines_of(text), "\r");
  } else {  // EBCDIC-like: every byte elsewhere
    for (const char c : text) coded += static_cast<char>(c ^ 0xC0);
  }
  text = coded;
}

void add_documents(std::string& text, Generator& random) {
  const Texts marks = {"---\n", "...\n", "--- \n--- \n", "%YAML 1.2\n---\n",
                       "%TAG ! tag:x,2000:\n---\n"};
  const std::string& mark = marks[below(random, marks.size())];
  text = below(random, 2) == 0 ? mark + text : text + mark + text;
}

void make_long(std::string& text, Generator& random) {
  const std::size_t size = below(random, 20) == 0 ? 10'000'000 : 100'000;
  const Texts pieces = {" ",  "#x\n", "\n", "a",        "k: 1\n",
                        "- ", "1, ",  "\"", "\xC3\xA9", "- &a *a\n"};
  const std::string& piece = pieces[below(random, pieces.size())];
  const std::string filling = repeated(piece, size / piece.size());
  if (below(random, 2) == 0) {
    text += filling;
  } else {
    change_value(text, random, filling);
  }
}

}  // namespace

std::string mutate(const std::string& text, const Texts& donors, Generator& random) {
  using Accident = void (*)(std::string&, Generator&);
  static constexpr Accident accidents[] = {
      flip_bytes,   flip_bits,    delete_line,  repeat_line,      swap_lines,   indent_line,
      retype_value, retype_value, retype_value, nest_deeply,      add_anchors,  change_key,
      insert_piece, insert_piece, truncate,     encode_otherwise, add_documents};
  std::string mutated = text;
  for (std::size_t i = below(random, 3) + 1; i > 0; --i) {
    if (mutated.empty()) break;
    if (below(random, 200) == 0) {
      make_long(mutated, random);
    } else if (below(random, 20) == 0) {
      const std::string& donor = donors[below(random, donors.size())];
      const std::size_t from = below(random, donor.size());
      mutated.insert(below(random, mutated.size() + 1), donor.substr(from, below(random, 400)));
    } else {
      accidents[below(random, std::size(accidents))](mutated, random);
    }
  }
  return mutated;
}

}  // namespace rmsnorm::test
