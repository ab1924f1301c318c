#pragma once

#include <algorithm>
#include <numeric>

#include "kernels/cuda/policy.hpp"

// What policy_forward.cpp and policy_backward.cpp reckon with: sizes of rows in vectors, and how
// much of a kernel a device holds.

namespace rmsnorm::kernels::cuda {

constexpr std::int64_t kPackBytes = 16;
constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kMaxBlockThreads = 512;
constexpr std::int64_t kFrameLaneSlots = 8;  // parts of a row that a lane adds up
constexpr std::int64_t kSharedBytesPerSm = 227 * 1024;
/// Before the stages, which start at a multiple of 128.
constexpr std::int64_t kRingFixedBytes = kRingHeaderBytes + 128;

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
inline std::int64_t round_up(std::int64_t a, std::int64_t b) {
  return ceil_div(a, b) * b;
}

inline std::int64_t power_of_two_at_least(std::int64_t value) {
  std::int64_t power = 1;
  while (power < value) power *= 2;
  return power;
}

inline std::int64_t row_bytes(const Problem& p) {
  return p.cols * p.element_bytes;
}

/// 16-byte vectors in a row; rounded down and one more where rows start anywhere.
inline std::int64_t row_vectors(const Problem& p) {
  return p.aligned ? row_bytes(p) / kPackBytes : row_bytes(p) / kPackBytes + 1;
}

inline bool is_shorter_than_vector(const Problem& p) {
  return row_bytes(p) < kPackBytes;
}

/// Vectors in the frame of a row that starts anywhere.
inline std::int64_t frame_vectors(const Problem& p) {
  return ceil_div(row_bytes(p) + kPackBytes - p.element_bytes, kPackBytes);
}

/// Chunks of a row that no cluster holds.
inline int long_chunks(const Problem& p) {
  return static_cast<int>(ceil_div(slice_vectors(p, 1), kLongThreads * kLongChunkVectors));
}

/// The most pieces that a row may have: what it has of each 16 bytes of memory.
inline std::int64_t row_pieces(const Problem& p) {
  const std::int64_t width = kPackBytes / p.element_bytes;
  return ceil_div(p.cols + width - 1, width);
}

/// Blocks that give every group the same number of rows, or one row less: fewer partial rows for
/// the same time.
inline int even_blocks(std::int64_t rows, std::int64_t groups, std::int64_t most) {
  const std::int64_t rounds = ceil_div(rows, groups * most);
  return static_cast<int>(std::max<std::int64_t>(1, ceil_div(rows, groups * rounds)));
}

/// Blocks of frames that an SM holds.
inline std::int64_t frame_resident(FrameShape shape, std::int64_t threads,
                                   std::size_t shared_bytes) {
  constexpr std::int64_t kRegisters = 65536, kReserved = 1024;  // of shared memory, per block
  const std::int64_t registers = kRegisters / (shape.threads * shape.blocks) / 8 * 8;
  const auto shared = static_cast<std::int64_t>(shared_bytes) + kReserved;
  return std::clamp<std::int64_t>(
      std::min(kRegisters / (registers * threads), (kSharedBytesPerSm + kReserved) / shared), 1,
      16);
}

/// Clusters of a size that the device holds at once. Those of 4 and more do not tile its processor
/// clusters: fewer are resident than blocks alone.
inline std::int64_t resident_clusters(std::int64_t cluster, const Device& device) {
  return cluster <= 2   ? device.sms / cluster
         : cluster == 4 ? device.sms / 4 - 3
                        : device.sms / cluster - 1;
}

}  // namespace rmsnorm::kernels::cuda
