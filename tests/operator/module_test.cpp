#include "rmsnorm/module.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <limits>
#include <sstream>

#include "rmsnorm/functional.hpp"
#include "support/matchers.hpp"
#include "support/tensors.hpp"

namespace rmsnorm::test {
namespace {

RMSNorm filled(std::int64_t cols, std::uint64_t seed = 2) {
  RMSNorm norm(RMSNormOptions({cols}));
  norm->to(test_device());
  const torch::NoGradGuard no_grad;
  norm->weight.copy_(random({cols}, at::kFloat, seed));
  return norm;
}

TEST_CASE("The module is the function over its weight", "[module]") {
  RMSNorm norm = filled(33);
  const at::Tensor x = random({2, 3, 33}, at::kFloat).requires_grad_();
  const at::Tensor dy = random({2, 3, 33}, at::kFloat, 3);
  const at::Tensor y = norm->forward(x);
  CHECK(same_bits(y, functional::rms_norm(x, norm->weight)));
  y.backward(dy);
  const auto want =
      torch::autograd::grad({functional::rms_norm(x, norm->weight)}, {x, norm->weight}, {dy});
  CHECK(same_bits(x.grad(), want[0]));
  CHECK(same_bits(norm->weight.grad(), want[1]));
}

TEST_CASE("The weight starts as ones, is a parameter and has the key weight", "[module]") {
  RMSNorm norm(RMSNormOptions({3, 4}).eps(1e-5));
  CHECK(same_bits(norm->weight, at::ones({3, 4})));
  const auto parameters = norm->named_parameters();
  REQUIRE(parameters.size() == 1);
  CHECK(parameters[0].key() == "weight");
  CHECK(norm->weight.requires_grad());
  CHECK(norm->buffers().empty());
  CHECK(norm->options.eps() == 1e-5);
}

TEST_CASE("reset_parameters restores the ones in place", "[module]") {
  RMSNorm norm = filled(8);
  const void* data = norm->weight.data_ptr();
  norm->reset_parameters();
  CHECK(norm->weight.eq(1).all().item<bool>());
  CHECK(norm->weight.data_ptr() == data);
  CHECK(norm->weight.requires_grad());
}

TEST_CASE("Saving and loading keeps the weight's bits", "[module]") {
  RMSNorm saved = filled(33), loaded = filled(33, 7);
  std::stringstream stream;
  torch::save(saved, stream);
  torch::load(loaded, stream, test_device());
  CHECK(same_bits(loaded->weight, saved->weight));
  const at::Tensor x = random({3, 33}, at::kFloat);
  CHECK(same_bits(loaded->forward(x), saved->forward(x)));
}

TEST_CASE("A clone is equal and independent", "[module]") {
  RMSNorm norm = filled(8);
  const auto clone = std::dynamic_pointer_cast<RMSNormImpl>(norm->clone());
  REQUIRE(clone);
  CHECK(same_bits(clone->weight, norm->weight));
  CHECK(clone->weight.data_ptr() != norm->weight.data_ptr());
  CHECK(clone->options.normalized_shape() == norm->options.normalized_shape());
  {
    const torch::NoGradGuard no_grad;
    clone->weight.fill_(5);
  }
  CHECK_FALSE(same_bits(clone->weight, norm->weight));
}

TEST_CASE("The module follows to(dtype)", "[module]") {
  for (const at::ScalarType type : all_types()) {
    RMSNorm norm = filled(33);
    norm->to(type);
    CHECK(norm->weight.scalar_type() == type);
    const at::Tensor x = random({3, 33}, type);
    CHECK(norm->forward(x).scalar_type() == type);
  }
  // float32 weight beside 16-bit x, as mixed precision has it.
  CHECK(filled(33)->forward(random({3, 33}, at::kHalf)).scalar_type() == at::kHalf);
}

TEST_CASE("It stands in a Sequential where LayerNorm stood", "[module]") {
  torch::nn::Sequential net(torch::nn::Linear(8, 33), RMSNorm(RMSNormOptions({33})),
                            torch::nn::Linear(33, 2));
  net->to(test_device());
  const auto keys = net->named_parameters().keys();
  CHECK(std::find(keys.begin(), keys.end(), "1.weight") != keys.end());
  net->forward(random({5, 8}, at::kFloat)).sum().backward();
  for (const at::Tensor& parameter : net->parameters()) CHECK(parameter.grad().defined());
}

TEST_CASE("Without a weight there is no parameter and nothing in an archive", "[module]") {
  RMSNorm norm(RMSNormOptions({33}).elementwise_affine(false));
  CHECK_FALSE(norm->weight.defined());
  CHECK(norm->parameters().empty());
  norm->reset_parameters();
  const at::Tensor x = random({3, 33}, at::kFloat).requires_grad_();
  const at::Tensor y = norm->forward(x);
  CHECK(same_bits(y, functional::rms_norm(x, {33})));
  y.sum().backward();
  CHECK(x.grad().defined());
  std::stringstream stream;
  torch::save(norm, stream);
  RMSNorm loaded(RMSNormOptions({33}).elementwise_affine(false));
  torch::load(loaded, stream);
  CHECK(same_bits(loaded->forward(x), y));
}

TEST_CASE("It prints its options", "[module]") {
  std::ostringstream text;
  text << *RMSNorm(RMSNormOptions({3, 4}).eps(1e-5).elementwise_affine(false));
  CHECK(text.str() == "rmsnorm::RMSNorm([3, 4], eps=1e-05, elementwise_affine=false)");
}

TEST_CASE("Options that cannot work are refused when it is made", "[module]") {
  const auto make = [](const RMSNormOptions& options) { return RMSNorm(options); };
  CHECK_THROWS_AS(make(RMSNormOptions({})), ContractError);
  CHECK_THROWS_AS(make(RMSNormOptions({0})), ContractError);
  CHECK_THROWS_WITH(make(RMSNormOptions({3, -1})), contains_text("got [3, -1]"));
  for (const double eps : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_WITH(make(RMSNormOptions({3}).eps(eps)),
                      contains_text("eps must be finite and > 0"));
  }
  CHECK_THROWS_AS(make(RMSNormOptions({3, 4}).contract(Contract::minimum)), ContractError);
  CHECK_THROWS_AS(make(RMSNormOptions({3}).elementwise_affine(false).contract(Contract::minimum)),
                  ContractError);
}

TEST_CASE("The module's contract is the one in its options", "[module]") {
  RMSNorm norm(RMSNormOptions({8}).contract(Contract::minimum));
  norm->to(test_device());
  CHECK_NOTHROW(norm->forward(random({2, 8}, at::kFloat)));
  CHECK_THROWS_AS(norm->forward(random({2, 3, 8}, at::kFloat)), ContractError);
  CHECK_THROWS_AS(norm->forward(random({2, 7}, at::kFloat)), ContractError);
  CHECK_THROWS_AS(norm->forward(at::Tensor()), ContractError);
}

}  // namespace
}  // namespace rmsnorm::test
