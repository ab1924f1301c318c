#include <torch/csrc/autograd/autograd.h>

#include "rmsnorm/counters.hpp"
#include "rmsnorm/functional.hpp"
#include "support/catch.hpp"
#include "support/tensors.hpp"

// Whatever the rank, strides, offset and dtypes: the numbers are those of the oracle on the same
// data as plain rows.

namespace rmsnorm::test {
namespace {

struct Results {
  at::Tensor y, dx, dgamma;
};

/// Forward and backward under Contract::full; dgamma undefined without gamma.
Results run(const at::Tensor& x, at::IntArrayRef shape, const at::Tensor& gamma,
            const at::Tensor& dy) {
  const at::Tensor leaf = x.detach().requires_grad_();
  std::vector<at::Tensor> inputs{leaf};
  if (gamma.defined()) inputs.push_back(gamma.detach().requires_grad_());
  const auto given = gamma.defined() ? std::optional(inputs[1]) : std::nullopt;
  const at::Tensor y = functional::rms_norm(leaf, shape, given);
  const auto gradients = torch::autograd::grad({y}, inputs, {dy});
  return {y, gradients[0], gamma.defined() ? gradients[1] : at::Tensor()};
}

/// Holds all three results to the oracle.
void check_against_oracle(const at::Tensor& x, at::IntArrayRef shape, const at::Tensor& gamma,
                          const at::Tensor& dy) {
  const Results got = run(x, shape, gamma, dy);
  const std::int64_t cols = c10::multiply_integers(shape);
  const auto rows_of = [&](const at::Tensor& t) { return t.reshape({-1, cols}); };
  const at::Tensor x2 = rows_of(x), dy2 = rows_of(dy);
  const at::Tensor gamma1 = gamma.defined() ? gamma.reshape({cols}) : at::Tensor();
  CAPTURE(text(x.scalar_type()), x.sizes(), x.strides(), dy.strides(), shape);
  CHECK(got.y.sizes() == x.sizes());
  CHECK(got.y.scalar_type() == x.scalar_type());
  CHECK(got.y.is_contiguous());
  CHECK(used_of_rounding(got.y, reference::expected_y(x2, gamma1, 1e-6), cols) <= 1);
  CHECK(got.dx.sizes() == x.sizes());
  CHECK(used_of_rounding(got.dx, reference::expected_dx(x2, gamma1, dy2, 1e-6), cols) <= 1);
  if (!gamma.defined()) return;
  CHECK(got.dgamma.sizes() == gamma.sizes());
  CHECK(got.dgamma.scalar_type() == gamma.scalar_type());
  CHECK(used_of_rounding(got.dgamma.reshape({cols}), reference::expected_dgamma(x2, dy2, 1e-6),
                         x2.size(0) + cols) <= 1);
}

TEST_CASE("Every dtype and row length meets the oracle", "[layouts]") {
  for (const at::ScalarType type : all_types()) {
    for (const std::int64_t cols : {1, 2, 31, 32, 33, 255, 256, 257, 1000, 4097}) {
      const std::int64_t rows = cols == 257 ? 129 : 3;
      const at::Tensor x = random({rows, cols}, type), gamma = random({cols}, type, 2);
      check_against_oracle(x, {cols}, gamma, 0.5 * x + random({rows, cols}, type, 3));
    }
  }
}

TEST_CASE("float32 gamma goes with 16-bit x and gets a float32 gradient", "[layouts]") {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    const at::Tensor x = random({33, 257}, type);
    check_against_oracle(x, {257}, random({257}, at::kFloat, 2), random({33, 257}, type, 3));
  }
}

TEST_CASE("The rank changes the shape and no bit of the numbers", "[layouts]") {
  const at::Tensor x = random({24, 16}, at::kFloat), dy = random({24, 16}, at::kFloat, 2),
                   gamma = random({16}, at::kFloat, 3);
  const Results plain = run(x, {16}, gamma, dy);
  const std::vector<std::vector<std::int64_t>> shapes{
      {24, 16}, {4, 6, 16}, {2, 3, 4, 16}, {2, 2, 3, 2, 16}, {1, 24, 1, 1, 16}};
  for (const auto& shape : shapes) {
    CAPTURE(shape);
    const Results got = run(x.view(shape), {16}, gamma, dy.view(shape));
    CHECK(got.y.sizes() == at::IntArrayRef(shape));
    CHECK(got.dx.sizes() == at::IntArrayRef(shape));
    CHECK(same_bits(got.y.view({24, 16}), plain.y));
    CHECK(same_bits(got.dx.view({24, 16}), plain.dx));
    CHECK(same_bits(got.dgamma, plain.dgamma));
  }
  const Results vector = run(x[5], {16}, gamma, dy[5]);
  CHECK(vector.y.dim() == 1);
  CHECK(same_bits(vector.y, plain.y[5]));
  // Only y's bits are promised to be the same in another number of rows.
  CHECK(used_of_rounding(vector.dx,
                         reference::expected_dx(x.narrow(0, 5, 1), gamma, dy.narrow(0, 5, 1), 1e-6),
                         16) <= 1);
}

TEST_CASE("Several trailing dims are normalized as one", "[layouts]") {
  const at::Tensor x = random({3, 4, 5, 6}, at::kFloat), dy = random({3, 4, 5, 6}, at::kFloat, 2);
  check_against_oracle(x, {6}, random({6}, at::kFloat, 3), dy);
  check_against_oracle(x, {5, 6}, random({5, 6}, at::kFloat, 3), dy);
  check_against_oracle(x, {4, 5, 6}, random({4, 5, 6}, at::kFloat, 3), dy);
  check_against_oracle(x, {3, 4, 5, 6}, random({3, 4, 5, 6}, at::kFloat, 3), dy);
}

TEST_CASE("Without gamma nothing is multiplied", "[layouts]") {
  for (const at::ScalarType type : all_types()) {
    const at::Tensor x = random({5, 33}, type), dy = random({5, 33}, type, 2);
    check_against_oracle(x, {33}, {}, dy);
    CHECK(same_bits(functional::rms_norm(x, {33}),
                    functional::rms_norm(x, {33}, at::ones({33}, options(type)))));
  }
}

TEST_CASE("No rows give empty y and dx, and a dgamma of exact zeros", "[layouts]") {
  for (const at::ScalarType type : all_types()) {
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{0, 8}, {3, 0, 8}}) {
      const at::Tensor x = at::empty(shape, options(type)), gamma = random({8}, type);
      const Results got = run(x, {8}, gamma, x);
      CHECK(got.y.sizes() == at::IntArrayRef(shape));
      CHECK(got.dx.sizes() == at::IntArrayRef(shape));
      CHECK(same_bits(got.dgamma, at::zeros({8}, options(type))));
    }
  }
  const at::Tensor none = at::empty({0, 8}, options(at::kFloat));
  CHECK(functional::rms_norm(none, random({8}, at::kFloat), 1e-6, Contract::minimum).numel() == 0);
}

TEST_CASE("Rows with a stride are read in place", "[layouts]") {
  for (const at::ScalarType type : all_types()) {
    const at::Tensor gamma = random({33}, type, 2);
    const at::Tensor wide = random({6, 50}, type), qkv = random({4, 3, 2, 33}, type, 3);
    reset_call_counts();
    check_against_oracle(wide.narrow(1, 7, 33), {33}, gamma,
                         random({6, 50}, type, 4).narrow(1, 1, 33));
    check_against_oracle(qkv.select(1, 1), {33}, gamma, qkv.select(1, 2));
    check_against_oracle(random({1, 33}, type).expand({5, 33}), {33}, gamma,
                         random({1, 33}, type, 5).expand({5, 33}));
    check_against_oracle(random({13, 33}, type).slice(0, 1, 13, 3), {33}, gamma,
                         random({4, 33}, type, 6));
    check_against_oracle(random({100}, type).narrow(0, 1, 99).view({3, 33}), {33}, gamma,
                         random({103}, type).narrow(0, 3, 99).view({3, 33}));
    CHECK(call_counts().copies == 0);
  }
}

TEST_CASE("Layouts that cannot be read in place are copied, visibly", "[layouts]") {
  const at::Tensor gamma = random({8}, at::kFloat), plain = random({6, 8}, at::kFloat, 2);
  const auto copies = [&](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& dy) {
    reset_call_counts();
    const std::int64_t cols = weight.numel();
    check_against_oracle(x, {cols}, weight, dy);
    return call_counts().copies;
  };
  CHECK(copies(plain, gamma, plain) == 0);
  CHECK(copies(plain, gamma, random({8, 6}, at::kFloat).t()) == 1);
  CHECK(copies(random({8, 6}, at::kFloat).t(), gamma, plain) == 2);  // once in each pass
  CHECK(copies(plain, random({16}, at::kFloat).slice(0, 0, 16, 2), plain) == 2);
  CHECK(copies(plain, gamma, random({1, 1}, at::kFloat).expand({6, 8})) == 1);
  // A gradient of sum() is one number expanded: the everyday case.
  reset_call_counts();
  const at::Tensor leaf = plain.detach().requires_grad_();
  functional::rms_norm(leaf, gamma).sum().backward();
  CHECK(call_counts().copies == 1);
}

TEST_CASE("Under minimum dy is made contiguous and counted; right dy is not copied", "[layouts]") {
  const at::Tensor gamma = random({8}, at::kFloat);
  const at::Tensor x = random({6, 8}, at::kFloat, 2).requires_grad_();
  const at::Tensor dy = random({8, 6}, at::kFloat, 3).t();
  reset_call_counts();
  const at::Tensor y = functional::rms_norm(x, gamma, 1e-6, Contract::minimum);
  const auto strided = torch::autograd::grad({y}, {x}, {dy}, true);
  CHECK(call_counts().copies == 1);
  const auto dense = torch::autograd::grad({y}, {x}, {dy.contiguous()});
  CHECK(call_counts().copies == 1);
  CHECK(same_bits(strided[0], dense[0]));
}

TEST_CASE("The layout changes no bit of the numbers", "[layouts]") {
  const at::Tensor x = random({12, 32}, at::kFloat), dy = random({12, 32}, at::kFloat, 2),
                   gamma = random({32}, at::kFloat, 3);
  const auto padded = [](const at::Tensor& t) {
    at::Tensor wide = at::full({12, 64}, 1e30, t.options());
    wide.narrow(1, 0, 32).copy_(t);
    return wide.narrow(1, 0, 32);
  };
  const Results plain = run(x, {32}, gamma, dy), strided = run(padded(x), {32}, gamma, padded(dy));
  const Results transposed = run(x.t().contiguous().t(), {32}, gamma, dy.t().contiguous().t());
  for (const Results& got : {strided, transposed}) {
    CHECK(same_bits(got.y, plain.y));
    CHECK(same_bits(got.dx, plain.dx));
    CHECK(same_bits(got.dgamma, plain.dgamma));
  }
}

}  // namespace
}  // namespace rmsnorm::test
