#pragma once

// Private to core: strict reading of YAML, so that config.cpp reads like the schema.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/config.hpp"

namespace rmsnorm {

/// One node of a YAML text as it was written: nothing resolved, nothing converted.
struct YamlNode {
  enum class Kind { null, text, list, map, alias };
  Kind kind = Kind::null;
  int line = 1;           ///< 1-based; of a block map or list, that of its first entry
  bool quoted = false;    ///< a text in quotes or a block text: never a number
  bool anchored = false;  ///< has an &anchor
  std::string tag;        ///< an explicit !tag
  std::string text;
  std::vector<YamlNode> keys;   ///< of a map, beside items
  std::vector<YamlNode> items;  ///< of a list or a map
};

/// The one document in `text`. Throws ConfigError for more than 1 MiB, bytes that are not UTF-8, a
/// NUL, nesting beyond 32 levels, text that is not YAML, no or several documents, an anchor, alias
/// or tag, a repeated key, or a key that is not plain text.
YamlNode read_yaml(const std::string& text, const std::string& file);

/// The largest text that read_yaml takes.
inline constexpr std::size_t max_config_bytes = std::size_t{1} << 20;

/// `file:line: key: allowed; got what`, each part on one line and cut to a readable length.
[[noreturn]] void refuse_config(const std::string& file, int line, std::string_view key,
                                std::string_view allowed, std::string_view got);

/// `text` with control characters escaped, cut after `max_characters`.
std::string shown(std::string_view text, std::size_t max_characters = 60);

/// A value together with where it stands; reads it as one type or refuses it.
class Value {
 public:
  Value(const std::string& file, const YamlNode& node, std::string path, int line)
      : file_(&file), node_(&node), path_(std::move(path)), line_(line) {}

  bool is_list() const { return node_->kind == YamlNode::Kind::list; }
  const YamlNode& node() const { return *node_; }
  const std::string& file() const { return *file_; }
  const std::string& path() const { return path_; }
  int line() const { return line_; }

  /// Throws ConfigError: what is allowed here, and what came (`got`, or this value).
  [[noreturn]] void refuse(std::string_view allowed) const;
  [[noreturn]] void refuse(std::string_view allowed, std::string_view got) const;

  /// Decimal digits and nothing else, from `least` to `most`.
  std::int64_t integer(std::int64_t least, std::int64_t most) const;

  /// A finite decimal number that `accept` takes; `allowed` says which.
  double real(std::string_view allowed, bool (*accept)(double)) const;

  /// A text for which `parse` gives a value (it returns an optional); `allowed` says which texts.
  template <class Parse>
  auto parsed(std::string_view allowed, Parse parse) const {
    if (node_->kind == YamlNode::Kind::text) {
      if (auto value = parse(std::string_view(node_->text))) return *std::move(value);
    }
    refuse(allowed);
  }

  /// One of the texts that `name` gives to `values`.
  template <class T>
  T one_of(std::initializer_list<T> values) const {
    std::string allowed;
    for (const T& value : values) {
      if (node_->kind == YamlNode::Kind::text && node_->text == word(value)) return value;
      allowed += allowed.empty() ? "" : ", ";
      allowed += word(value);
    }
    refuse(values.size() > 1 ? "one of " + allowed : allowed);
  }

  /// The entries of a list that has at least one; `of_what` says of what, in the plural.
  std::vector<Value> entries(std::string_view of_what) const;

  /// What `read` makes of the entries, all different.
  template <class Read>
  auto distinct(std::string_view of_what, Read read) const {
    std::vector<decltype(read(*this))> values;
    std::set<decltype(read(*this))> seen;
    for (const Value& entry : entries(of_what)) {
      values.push_back(read(entry));
      if (!seen.insert(values.back()).second) entry.refuse_repetition();
    }
    return values;
  }

 private:
  template <class T>
  static std::string_view word(const T& value) {
    if constexpr (std::is_convertible_v<T, std::string_view>) {
      return value;
    } else {
      return name(value);
    }
  }
  [[noreturn]] void refuse_repetition() const;

  const std::string* file_;
  const YamlNode* node_;
  std::string path_;
  int line_;
};

/// A map with known keys.
class Section {
 public:
  /// Throws ConfigError when `map` is not a map or has a key outside `keys`.
  Section(const Value& map, std::initializer_list<std::string_view> keys);

  const Value& value() const { return map_; }
  std::optional<Value> optional(std::string_view key) const;
  /// Throws ConfigError when the key is missing; `allowed` says what belongs there.
  Value required(std::string_view key, std::string_view allowed) const;

  /// Replaces `target` where the key is given.
  void integer(std::string_view key, std::int64_t& target, std::int64_t least,
               std::int64_t most) const {
    if (const auto value = optional(key)) target = value->integer(least, most);
  }
  void real(std::string_view key, double& target, std::string_view allowed,
            bool (*accept)(double)) const {
    if (const auto value = optional(key)) target = value->real(allowed, accept);
  }

 private:
  Value map_;
};

}  // namespace rmsnorm
