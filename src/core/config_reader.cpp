#include "core/config_reader.hpp"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <charconv>
#include <cmath>
#include <sstream>
#include <system_error>

namespace rmsnorm {
namespace {

using Kind = YamlNode::Kind;

constexpr std::size_t max_depth = 32;
constexpr std::string_view whole_file = "config";

int line_of(const YAML::Mark& mark) {
  return mark.is_null() ? 1 : mark.line + 1;
}

/// The bytes of the UTF-8 sequence at the start of `text`, 0 if there is none. Source: RFC 3629,
/// table of section 4.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xc2 && lead <= 0xdf   ? 2
                             : lead >= 0xe0 && lead <= 0xef ? 3
                             : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                            : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xed && byte(1) > 0x9f;
  const bool beyond = lead == 0xf4 && byte(1) > 0x8f;
  return overlong || surrogate || beyond ? 0 : length;
}

std::string described(const YamlNode& node) {
  switch (node.kind) {
    case Kind::null:
      return "nothing";
    case Kind::text:
      return node.quoted ? fmt::format("the text \"{}\"", shown(node.text)) : shown(node.text);
    case Kind::list:
      return node.items.empty() ? "an empty list" : "a list";
    case Kind::map:
      return "a map";
    case Kind::alias:
      break;
  }
  return "an alias";
}

std::string key_path(const std::string& parent, std::string_view key) {
  return parent.empty() ? shown(key) : fmt::format("{}.{}", parent, shown(key));
}

/// Line of a map's entry: a missing or nested value stands where its key does.
int entry_line(const YamlNode& key, const YamlNode& value) {
  return value.kind == Kind::text || value.kind == Kind::alias ? value.line : key.line;
}

/// Builds the tree from the parser's events. YAML::Node would resolve aliases and lose repeated
/// keys and their lines.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& file) : file_(file) {}

  YamlNode take() { return std::move(root_); }
  int documents() const { return documents_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) {
      refuse_config(file_, line_of(mark), whole_file, "one YAML document",
                    "a second document or text behind the first");
    }
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    attach(node(Kind::null, mark, "?", anchor));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    attach(node(Kind::alias, mark, "?", 0));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode scalar = node(Kind::text, mark, tag, anchor);
    scalar.text = value;
    attach(std::move(scalar));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(node(Kind::list, mark, tag, anchor));
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(node(Kind::map, mark, tag, anchor));
  }
  void OnMapEnd() override { close(); }

 private:
  static YamlNode node(Kind kind, const YAML::Mark& mark, const std::string& tag,
                       YAML::anchor_t anchor) {
    YamlNode made;
    made.kind = kind;
    made.line = line_of(mark);
    made.anchored = anchor != 0;
    made.quoted =
        tag == "!";  // yaml-cpp's tag of a scalar that is not plain; "?" stands for no tag
    if (tag != "!" && tag != "?") made.tag = tag;
    return made;
  }

  void open(YamlNode made) {
    // The parser recurses for each level: stop it before its stack ends.
    if (open_.size() >= max_depth) {
      refuse_config(file_, made.line, whole_file,
                    fmt::format("at most {} levels of nesting", max_depth), "more");
    }
    open_.push_back(std::move(made));
  }

  void close() {
    YamlNode made = std::move(open_.back());
    open_.pop_back();
    if (made.kind == Kind::map) {
      // Until here keys and values alternate in items.
      std::vector<YamlNode> values;
      for (std::size_t i = 0; i + 1 < made.items.size(); i += 2) {
        made.keys.push_back(std::move(made.items[i]));
        values.push_back(std::move(made.items[i + 1]));
      }
      made.items = std::move(values);
    }
    attach(std::move(made));
  }

  void attach(YamlNode made) {
    if (open_.empty()) {
      root_ = std::move(made);
    } else {
      open_.back().items.push_back(std::move(made));
    }
  }

  const std::string& file_;
  std::vector<YamlNode> open_;
  YamlNode root_;
  int documents_ = 0;
};

void refuse_unencoded(const std::string& text, const std::string& file) {
  int line = 1;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(std::string_view(text).substr(at, 4));
    if (length == 0 || text[at] == '\0') {
      refuse_config(file, line, whole_file, "UTF-8 text without NUL bytes",
                    fmt::format("byte \\x{:02x}", static_cast<unsigned char>(text[at])));
    }
    line += text[at] == '\n';
    at += length;
  }
}

void refuse_anchor_alias_tag(const YamlNode& node, const std::string& file, std::string_view path,
                             int line) {
  constexpr std::string_view allowed = "a plain value without anchor, alias or tag";
  if (path.empty()) path = whole_file;
  if (node.kind == Kind::alias) refuse_config(file, line, path, allowed, "an alias");
  if (node.anchored) refuse_config(file, line, path, allowed, "an anchor");
  if (!node.tag.empty())
    refuse_config(file, line, path, allowed, fmt::format("the tag {}", shown(node.tag)));
}

/// The rules for every node, whatever the schema.
void check_tree(const YamlNode& node, const std::string& file, const std::string& path, int line) {
  refuse_anchor_alias_tag(node, file, path, line);
  if (node.kind == Kind::list) {
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      check_tree(node.items[i], file, fmt::format("{}[{}]", path, i), node.items[i].line);
    }
  }
  std::set<std::string_view> seen;
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    const YamlNode& key = node.keys[i];
    refuse_anchor_alias_tag(key, file, key.kind == Kind::text ? key_path(path, key.text) : path,
                            key.line);
    if (key.kind != Kind::text) {
      refuse_config(file, key.line, path.empty() ? whole_file : path, "a key that is a word",
                    described(key));
    }
    const std::string item_path = key_path(path, key.text);
    if (!seen.insert(key.text).second) {
      refuse_config(file, key.line, item_path, "a key that appears once", "it again");
    }
    check_tree(node.items[i], file, item_path, entry_line(key, node.items[i]));
  }
}

/// Digits, with a point among them and an exponent behind them if wanted; no sign but -, no leading
/// zeros.
bool is_decimal(std::string_view text) {
  const auto digits = [&text] {
    const std::size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(count);
    return count;
  };
  const auto skip = [&text](std::string_view any) {
    const bool found = !text.empty() && any.find(text[0]) != std::string_view::npos;
    if (found) text.remove_prefix(1);
    return found;
  };
  skip("-");
  const bool leading_zero = !text.empty() && text[0] == '0';
  const std::size_t whole = digits();
  const std::size_t fraction = skip(".") ? digits() : 0;
  if (whole + fraction == 0 || (leading_zero && whole > 1)) return false;
  if (skip("eE")) {
    skip("+-");
    if (digits() == 0) return false;
  }
  return text.empty();
}

}  // namespace

std::string shown(std::string_view text, std::size_t max_characters) {
  std::string result;
  for (std::size_t characters = 0; !text.empty(); ++characters) {
    if (characters == max_characters) return result + "...";
    const std::size_t length = utf8_length(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    const bool c1_control =
        length == 2 && byte == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0;
    if (text[0] == '\n') {
      result += "\\n";
    } else if (text[0] == '\t') {
      result += "\\t";
    } else if (length == 0 || byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else if (c1_control) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[1]));
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return result;
}

void refuse_config(const std::string& file, int line, std::string_view key,
                   std::string_view allowed, std::string_view got) {
  throw ConfigError(fmt::format("{}:{}: {}: {}; got {}", shown(file, std::string::npos), line, key,
                                allowed, got));
}

YamlNode read_yaml(const std::string& text, const std::string& file) {
  if (text.size() > max_config_bytes) refuse_config(file, 1, whole_file, "at most 1 MiB", "more");
  refuse_unencoded(text, file);
  TreeBuilder tree(file);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(tree)) {
    }
  } catch (const YAML::Exception& error) {
    refuse_config(file, line_of(error.mark), whole_file, "valid YAML", shown(error.msg));
  }
  YamlNode root = tree.take();
  check_tree(root, file, "", 1);
  return root;
}

void Value::refuse(std::string_view allowed) const {
  refuse(allowed, described(*node_));
}

void Value::refuse(std::string_view allowed, std::string_view got) const {
  refuse_config(*file_, line_, path_.empty() ? whole_file : path_, allowed, got);
}

void Value::refuse_repetition() const {
  refuse("every entry once", described(*node_) + " again");
}

std::int64_t Value::integer(std::int64_t least, std::int64_t most) const {
  const std::string& text = node_->text;
  const bool is_plain = node_->kind == Kind::text && !node_->quoted;
  const bool is_digits = is_plain && text.find_first_not_of("0123456789") == std::string::npos &&
                         !text.empty() && (text == "0" || text.front() != '0');
  std::int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (!is_digits || parsed.ec != std::errc() || value < least || value > most) {
    refuse(fmt::format("a whole number from {} to {}", least, most));
  }
  return value;
}

double Value::real(std::string_view allowed, bool (*accept)(double)) const {
  const std::string& text = node_->text;
  const bool is_plain = node_->kind == Kind::text && !node_->quoted;
  double value = 0;
  if (!is_plain || !is_decimal(text)) refuse(allowed);
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || !std::isfinite(value) || !accept(value)) refuse(allowed);
  return value;
}

std::vector<Value> Value::entries(std::string_view of_what) const {
  if (!is_list() || node_->items.empty())
    refuse(fmt::format("a list of {}, at least one", of_what));
  std::vector<Value> values;
  values.reserve(node_->items.size());
  for (std::size_t i = 0; i < node_->items.size(); ++i) {
    values.emplace_back(*file_, node_->items[i], fmt::format("{}[{}]", path_, i),
                        node_->items[i].line);
  }
  return values;
}

Section::Section(const Value& map, std::initializer_list<std::string_view> keys) : map_(map) {
  std::string allowed;
  for (const std::string_view key : keys)
    allowed += (allowed.empty() ? "" : ", ") + std::string(key);
  const YamlNode& node = map.node();
  if (node.kind != Kind::map) map.refuse("a map with keys of " + allowed);
  for (const YamlNode& key : node.keys) {
    if (std::find(keys.begin(), keys.end(), key.text) == keys.end()) {
      refuse_config(map.file(), key.line, key_path(map.path(), key.text), "a key of " + allowed,
                    "an unknown key");
    }
  }
}

std::optional<Value> Section::optional(std::string_view key) const {
  const YamlNode& node = map_.node();
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    if (node.keys[i].text == key) {
      return Value(map_.file(), node.items[i], key_path(map_.path(), key),
                   entry_line(node.keys[i], node.items[i]));
    }
  }
  return std::nullopt;
}

Value Section::required(std::string_view key, std::string_view allowed) const {
  if (auto value = optional(key)) return *std::move(value);
  refuse_config(map_.file(), map_.line(), key_path(map_.path(), key), allowed,
                "nothing, the key is missing");
}

}  // namespace rmsnorm
