#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "bench/plan.hpp"
#include "bench/tensors.hpp"
#include "check/inputs.hpp"
#include "check/subject.hpp"

namespace rmsnorm::bench {

/// What a call left; those that its pass does not have are undefined.
struct Outputs {
  at::Tensor y, dx, dgamma;
};

/// Something to be timed, that can be run again and again, and what its last run gave.
class Call {
 public:
  explicit Call(std::function<Outputs()> body) : body_(std::move(body)) {}
  void run() {
    outputs_ = {};  // before the next call allocates, as a caller does who is done with a result
    outputs_ = body_();
  }
  const Outputs& outputs() const { return outputs_; }

 private:
  std::function<Outputs()> body_;
  Outputs outputs_;
};

/// What a call needs beside the implementation. `inputs` must outlive the call.
struct CallSetting {
  const Case& problem;
  const CaseInputs& inputs;
  double eps;
  Contract contract;
  at::Device device;
};

/// Protocol `calls`: a complete call with inputs that require gradients. `reference` and `aten` are
/// called as their users call them; other tables through the autograd wrapper. Of `inputs`, each
/// run takes the next.
Call complete_call(const Subject& subject, Pass pass, const CallSetting& setting,
                   std::shared_ptr<InputsInTurn> inputs);

/// The column `floor`: an autograd function of the same signature that saves as much, allocates its
/// outputs and launches nothing.
Call empty_call(Pass pass, const CallSetting& setting, std::shared_ptr<InputsInTurn> inputs);

/// The column `copy` of protocol `calls`: outputs allocated as for a kernel, no autograd. The case
/// must be contiguous.
Call complete_copy(Pass pass, const CallSetting& setting, std::shared_ptr<InputsInTurn> inputs);

/// Protocols `cold` and `graph`: the launches of one pass alone, on the current stream. Tables
/// write to buffers made here, poisoned; `reference` and `aten` are libtorch operations that
/// allocate. The rstd that a backward reads is of the subject's own forward. Throws ContractError
/// for a case that the table refuses.
Call kernel_call(const Subject& subject, Pass pass, const CallSetting& setting);

}  // namespace rmsnorm::bench
