#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "check/buffers.hpp"
#include "check/check.hpp"
#include "check/inputs.hpp"
#include "check/memory.hpp"
#include "reference/reference.hpp"

namespace rmsnorm {

/// Adds a finding to a result.
void worsen(ComparisonResult& result, State state, const std::string& reason);

/// The inputs, outputs and workspaces of one case, and the calls on them. The constructor and the
/// calls throw MemoryShortage, before anything is allocated, where the memory does not suffice.
class Trial {
 public:
  Trial(Operation operation, const Case& problem, Runner& runner, const Config& config,
        const at::Device& device);

  /// Bytes that a trial takes at most, but for the workspace of the implementation.
  static std::int64_t bytes(Operation operation, const Case& problem);

  /// Which gradients a backward is asked for.
  struct Wanted {
    bool dx = true, dgamma = true;
  };

  /// One forward and, if the operation needs it, one backward, on poisoned outputs.
  Outcome run(Wanted wanted);
  Outcome run() { return run({}); }
  /// One forward of the first row alone, on poisoned outputs.
  Outcome run_first_row();

  /// The result that the operation is about: [rows, cols], or [1, cols] of dgamma.
  at::Tensor result() const;

  /// Judges the result against the oracle, a slice of rows at a time.
  ComparisonResult compare(const Bounds& bounds) const;
  /// Judges the saved statistic: to the accuracy of its own dtype.
  ComparisonResult compare_rstd() const;

  /// What was written that should not have been, as a phrase; empty when nothing.
  std::string damage() const;

  Operation operation() const { return operation_; }
  const Case& problem() const { return problem_; }
  CaseInputs& inputs() { return inputs_; }

 private:
  std::int64_t elements() const { return problem_.rows * problem_.cols; }
  void poison_outputs();
  Outcome run_forward(std::int64_t rows);
  template <class Args>
  void prepare(Args& args);
  template <class Body>
  void for_each_slice(Body body) const;
  reference::Expected expected_dgamma() const;

  Operation operation_;
  Case problem_;
  Runner& runner_;
  double eps_;
  at::Device device_;
  CaseInputs inputs_;
  Dtype wide_, gamma_dtype_;
  GuardedBuffer y_, rstd_, dx_, dgamma_, workspace_;
};

}  // namespace rmsnorm
