#include "check/runner.hpp"
#include "core/files.hpp"

#include <exception>

#include "operator/kernels.hpp"
#include "operator/streams.hpp"

namespace rmsnorm {
namespace {

template <class Args>
Outcome run_call(const Subject& subject, const char* (*refusal)(const Args*),
                 std::int32_t (*call)(const Args*), const char* name, const Args& args) {
  if (refusal != nullptr) {
    if (const char* reason = refusal(&args)) return {Outcome::Kind::refused, reason};
  }
  try {
    require_ok(*subject.table, name, call(&args));
    if (subject.table->device_type == RMSNORM_CUDA) synchronize_current_stream();
  } catch (const std::exception& error) {
    return {Outcome::Kind::error, first_line(error.what())};
  }
  return {};
}

}  // namespace

std::size_t InProcessRunner::workspace_bytes(const rmsnorm_forward_args& args) {
  const auto query = subject_.table->forward_workspace_bytes;
  return query == nullptr ? 0 : query(&args);
}

std::size_t InProcessRunner::workspace_bytes(const rmsnorm_backward_args& args) {
  const auto query = subject_.table->backward_workspace_bytes;
  return query == nullptr ? 0 : query(&args);
}

Outcome InProcessRunner::run(const rmsnorm_forward_args& args) {
  return run_call(subject_, subject_.table->forward_refusal, subject_.table->forward, "forward",
                  args);
}

Outcome InProcessRunner::run(const rmsnorm_backward_args& args) {
  return run_call(subject_, subject_.table->backward_refusal, subject_.table->backward, "backward",
                  args);
}

}  // namespace rmsnorm
