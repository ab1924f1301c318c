#pragma once

#include <cstdint>

#include "kernels/cuda/policy.hpp"

// Problems for the tests of the plans.

namespace rmsnorm::kernels::cuda {

inline Problem problem(std::int64_t rows, std::int64_t cols, int bytes = 2) {
  Problem p;
  p.rows = rows;
  p.cols = cols;
  p.element_bytes = p.gamma_bytes = bytes;
  p.aligned = cols * bytes % 16 == 0;
  p.dense = true;
  return p;
}

constexpr std::int64_t kCols[] = {
    1,       2,       3,      4,      5,      6,      7,      8,      9,      16,      31,
    64,      65,      127,    128,    129,    255,    256,    257,    264,    383,     385,
    511,     512,     513,    768,    776,    1000,   1023,   1024,   1025,   1032,    1151,
    1153,    2047,    2048,   2049,   2056,   3584,   3592,   4096,   4097,   4104,    4608,
    4609,    5120,    6144,   8184,   8192,   8193,   8200,   10247,  10249,  12288,   15353,
    15361,   16384,   16385,  16392,  19999,  20000,  23033,  23049,  24569,  24577,   30713,
    30721,   32761,   32768,  32769,  32776,  57073,  57089,  65536,  65537,  92161,   131072,
    245753,  245761,  262144, 262152, 269234, 294906, 307193, 307201, 524288, 1048576, 1843200,
    1843201, 1843208, 4000001};

}  // namespace rmsnorm::kernels::cuda
