#pragma once

#include <random>
#include <string>
#include <vector>

namespace rmsnorm::test {

using Generator = std::mt19937_64;

/// One to three accidents to a config: bytes flipped, lines lost or repeated, values of another
/// type, huge numbers, anchors and aliases, deep nesting, other encodings, several documents, 10
/// MB. `donors` are other configs, pieces of which may end up in it.
std::string mutate(const std::string& text, const std::vector<std::string>& donors,
                   Generator& random);

}  // namespace rmsnorm::test
