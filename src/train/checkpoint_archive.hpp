#pragma once

// Private to the checkpoint: what stands in its line of JSON and in its archive of tensors.

#include <string>
#include <vector>

#include "train/checkpoint.hpp"

namespace rmsnorm {

/// The line of JSON.
nlohmann::json describe(const Snapshot& snapshot, const std::vector<ParameterShape>& shapes);

/// The libtorch archive.
std::string encode_tensors(const Snapshot& snapshot, const std::vector<ParameterShape>& shapes);

}  // namespace rmsnorm
