#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace rmsnorm {

/// A CPU generator of its own for each purpose under one seed: drawing more for one changes nothing
/// for another.
at::Generator seeded_generator(std::uint64_t seed, std::string_view purpose);

/// Batches in a shuffled order: a new permutation of the examples for each epoch, cut into batches;
/// what is left over at an epoch's end is skipped. Its state is what a checkpoint needs to go on
/// with exactly the next batch.
class BatchOrder {
 public:
  /// 1 <= batch <= examples.
  BatchOrder(std::int64_t examples, std::int64_t batch, std::uint64_t seed);

  /// Indices of the next batch, int64 [batch] on the CPU.
  at::Tensor next();

  struct State {
    at::Tensor generator;       ///< uint8: the generator before this epoch's permutation was drawn
    std::int64_t position = 0;  ///< examples of this epoch that were handed out
  };
  State state() const;
  /// Throws std::invalid_argument, with this order as it was, for a state that no order can have.
  void restore(const State& state);

 private:
  void start_epoch();

  std::int64_t examples_, batch_, position_ = 0;
  at::Generator generator_;
  at::Tensor epoch_generator_, permutation_;
};

}  // namespace rmsnorm
