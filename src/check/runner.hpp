#pragma once

#include <string>

#include "check/subject.hpp"

namespace rmsnorm {

/// How one call of an implementation ended.
struct Outcome {
  enum class Kind { done, refused, error };
  Kind kind = Kind::done;
  std::string reason;  ///< of a refusal or error
};

/// Runs calls of one implementation on buffers that the caller made, and returns when the device
/// has finished them. The check and benchmark paths know only this; where the call runs is the
/// runner's affair.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual std::size_t workspace_bytes(const rmsnorm_forward_args& args) = 0;
  virtual std::size_t workspace_bytes(const rmsnorm_backward_args& args) = 0;
  virtual Outcome run(const rmsnorm_forward_args& args) = 0;
  virtual Outcome run(const rmsnorm_backward_args& args) = 0;
};

/// In this process, on the current stream.
class InProcessRunner final : public Runner {
 public:
  explicit InProcessRunner(Subject subject) : subject_(std::move(subject)) {}
  std::size_t workspace_bytes(const rmsnorm_forward_args& args) override;
  std::size_t workspace_bytes(const rmsnorm_backward_args& args) override;
  Outcome run(const rmsnorm_forward_args& args) override;
  Outcome run(const rmsnorm_backward_args& args) override;

 private:
  Subject subject_;
};

}  // namespace rmsnorm
