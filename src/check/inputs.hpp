#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "check/buffers.hpp"
#include "core/cases.hpp"
#include "rmsnorm/implementation.h"

namespace rmsnorm {

/// The inputs of one case in memory laid out as the case says, between guards of NaN.
///
/// Drawn from a generator seeded for the case: z normal; x = z, or rows made of z (InputKind); dy =
/// 0.5*z + noise, correlated with x so that the projection term of dx is as large as the direct
/// one; gamma normal, both signs, every 7th element zero from 8 columns on. Rounded to the case's
/// dtypes; the oracle sees the rounded values. Drawn on the CPU up to 2^24 elements, so that every
/// device then sees the same numbers.
class CaseInputs {
 public:
  CaseInputs(const Case& problem, std::uint64_t seed, const at::Device& device);

  at::Tensor x() const { return x_; }          ///< [rows, cols], a view of the buffer
  at::Tensor dy() const { return dy_; }        ///< [rows, cols]
  at::Tensor gamma() const { return gamma_; }  ///< [cols] or undefined

  /// Bytes that the inputs of a case and the copies of them take.
  static std::int64_t bytes(const Case& problem);

  /// Fills x, gamma and sizes of the args.
  void describe(rmsnorm_forward_args& args) const;
  void describe(rmsnorm_backward_args& args) const;

  /// Puts a NaN into x; the copy that damage() compares with stays as it was.
  void spoil(std::int64_t row, std::int64_t col);
  /// Takes it out again.
  void mend();

  /// Which input a call has changed, as a phrase; empty when none.
  std::string damage() const;

 private:
  struct Placed {
    GuardedBuffer buffer;
    at::Tensor rows;  // the [rows, cols] view
    rmsnorm_rows address;
  };
  static Placed place(const Case& problem, bool is_dy, const at::Device& device);
  void draw(const Case& problem, std::uint64_t seed);

  Dtype gamma_dtype_;
  Placed x_placed_, dy_placed_;
  GuardedBuffer gamma_buffer_;
  at::Tensor x_, dy_, gamma_;
  at::Tensor x_copy_, dy_copy_, gamma_copy_;
};

}  // namespace rmsnorm
