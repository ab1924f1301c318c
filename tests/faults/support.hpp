#pragma once

#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "check/check.hpp"
#include "operator/autograd.hpp"
#include "operator/kernels.hpp"
#include "rmsnorm/functional.hpp"
#include "support/matchers.hpp"
#include "support/tensors.hpp"

// For the tests of faults that shipped elsewhere (tests/README.md): each kernel that this build has
// for the device of the binary.

namespace rmsnorm::test {

inline std::vector<const rmsnorm_implementation*> kernels() {
  const std::int32_t device = test_device().is_cuda() ? RMSNORM_CUDA : RMSNORM_CPU;
  return {find_kernels("rowwise", device), find_kernels("tuned", device)};
}

struct Results {
  at::Tensor y, dx, dgamma;
};

/// Forward and backward over the last dim under Contract::full; dgamma undefined without gamma.
inline Results run(const rmsnorm_implementation& table, const at::Tensor& x,
                   const at::Tensor& gamma, const at::Tensor& dy, double eps = 1e-6) {
  const at::Tensor leaf = x.detach().requires_grad_();
  std::vector<at::Tensor> inputs{leaf};
  if (gamma.defined()) inputs.push_back(gamma.detach().requires_grad_());
  const at::Tensor y = rms_norm_with(table, leaf, gamma.defined() ? inputs[1] : gamma, {x.size(-1)},
                                     eps, Contract::full);
  const auto gradients = torch::autograd::grad({y}, inputs, {dy});
  return {y.detach(), gradients[0], gamma.defined() ? gradients[1] : at::Tensor()};
}

inline bool same_results(const Results& a, const Results& b) {
  return same_bits(a.y, b.y) && same_bits(a.dx, b.dx) && a.dgamma.defined() == b.dgamma.defined() &&
         (!a.dgamma.defined() || same_bits(a.dgamma, b.dgamma));
}

/// Holds results to the oracle: what rounding leaves, and no more.
inline void check_against_oracle(const Results& got, const at::Tensor& x, const at::Tensor& gamma,
                                 const at::Tensor& dy, double eps = 1e-6) {
  const std::int64_t cols = x.size(-1);
  const at::Tensor rows = x.reshape({-1, cols}), dy_rows = dy.reshape({-1, cols});
  CHECK(got.y.sizes() == x.sizes());
  CHECK(got.dx.sizes() == x.sizes());
  CHECK(got.y.scalar_type() == x.scalar_type());
  CHECK(used_of_rounding(got.y, reference::expected_y(rows, gamma, eps), cols) <= 1);
  CHECK(used_of_rounding(got.dx, reference::expected_dx(rows, gamma, dy_rows, eps), cols) <= 1);
  if (!gamma.defined()) return;
  CHECK(got.dgamma.scalar_type() == gamma.scalar_type());
  CHECK(used_of_rounding(got.dgamma, reference::expected_dgamma(rows, dy_rows, eps),
                         rows.size(0) + cols) <= 1);
}

/// The same for every kernel.
inline void check_kernels(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& dy,
                          double eps = 1e-6) {
  for (const rmsnorm_implementation* table : kernels()) {
    CAPTURE(table->name, text(x.scalar_type()), x.sizes(), x.strides(), dy.strides());
    check_against_oracle(run(*table, x, gamma, dy, eps), x, gamma, dy, eps);
  }
}

/// Bounds of the checks here: what configs/full.yaml declares.
inline Config fault_config() {
  Config config;
  config.contract = Contract::full;
  config.tolerance[Dtype::float64] = {.atol = 1e-13, .rtol = 1e-12};
  config.tolerance[Dtype::float32] = {.atol = 1e-5, .rtol = 1e-5};
  config.tolerance[Dtype::float16] = {.atol = 1e-4, .rtol = 1e-3};
  config.tolerance[Dtype::bfloat16] = {.atol = 1e-3, .rtol = 8e-3};
  return config;
}

constexpr Operation kOperations[] = {Operation::forward, Operation::backward, Operation::gamma};
constexpr Dtype kDtypes[] = {Dtype::float64, Dtype::float32, Dtype::float16, Dtype::bfloat16};

inline ComparisonResult check_table(const rmsnorm_implementation& table, Operation operation,
                                    const Case& problem, const Config& config = fault_config()) {
  InProcessRunner runner({table.name, &table, nullptr});
  return check_case(operation, problem, runner, config, test_device());
}

/// Guards, inputs, bits of a second call and every element, for every kernel.
inline void check_passes(Operation operation, const Case& problem,
                         const Config& config = fault_config()) {
  for (const rmsnorm_implementation* table : kernels()) {
    const ComparisonResult result = check_table(*table, operation, problem, config);
    CAPTURE(table->name, problem.name(), command_name(operation), result.reason);
    const bool nothing = operation == Operation::gamma && problem.gamma == GammaKind::none;
    CHECK(name(result.state) == name(nothing ? State::skipped : State::passed));
  }
}

}  // namespace rmsnorm::test
