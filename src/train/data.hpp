#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/config.hpp"

namespace rmsnorm {

/// Examples of one split. float32, on the CPU.
struct Split {
  at::Tensor inputs;   ///< [examples, inputs]
  at::Tensor targets;  ///< [examples, outputs]
};

struct Dataset {
  Split train, validation, test;
};

/// Data whose files and manifest do not match each other or the config; says which file and both
/// values.
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Disjoint draws from one synthetic teacher: inputs normal, with a scale of their own per example;
/// targets a fixed random two-layer network of the direction of the input, standardised, plus
/// normal noise. Same seed, same bits.
Dataset draw_dataset(const TrainConfig& config, std::uint64_t seed);

/// Writes DIR/{train,validation,test}.bin (float32, little-endian, all inputs, then all targets)
/// and then DIR/manifest.json with shapes, seed and SHA-256 sums. Each file is replaced atomically,
/// the manifest last.
void write_dataset(const std::filesystem::path& dir, const Dataset& dataset,
                   const TrainConfig& config, std::uint64_t seed);

/// Reads it back. Throws MissingFileError when there is none, DataError unless sums, shapes, seed
/// and sizes are what the manifest and the config say.
Dataset read_dataset(const std::filesystem::path& dir, const TrainConfig& config,
                     std::uint64_t seed);

}  // namespace rmsnorm
