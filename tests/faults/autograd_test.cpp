#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <set>
#include <sstream>
#include <thread>

#include "faults/memory.hpp"
#include "faults/support.hpp"
#include "reference/gradcheck.hpp"
#include "rmsnorm/module.hpp"

// AUTOGRAD, ALIAS and modules: what lies between the kernels and a training program.

namespace rmsnorm::test {
namespace {

using torch::autograd::grad;

at::Tensor norm(const rmsnorm_implementation& table, const at::Tensor& x, const at::Tensor& gamma) {
  return rms_norm_with(table, x, gamma, {x.size(-1)}, 1e-6, Contract::full);
}

at::Tensor leaf(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType type = at::kFloat) {
  return random(sizes, type, seed).requires_grad_();
}

TEST_CASE("B021 dy is left as it was, also where the skip path goes on with it", "[autograd]") {
  for (const rmsnorm_implementation* table : kernels()) {
    const at::Tensor gamma = random({33}, at::kDouble, 2);
    const at::Tensor a = leaf({5, 33}, 1, at::kDouble), b = a.detach().clone().requires_grad_();
    const auto plain = [&](const at::Tensor& x) {
      return x * at::rsqrt(x.square().mean(-1, true) + 1e-6) * gamma;
    };
    const at::Tensor w = random({5, 33}, at::kDouble, 3);
    ((a + norm(*table, norm(*table, a, gamma), gamma)) * w).sum().backward();
    ((b + plain(plain(b))) * w).sum().backward();
    CHECK(max_abs_difference(a.grad(), b.grad()) <= 1e-12);
    const at::Tensor dy = random({5, 33}, at::kDouble, 4), copy = dy.clone();
    static_cast<void>(run(*table, a, gamma, dy));
    CHECK(same_bits(dy, copy));
  }
}

TEST_CASE("B022 the second derivative is right: no saved value counts as a constant",
          "[autograd]") {
  for (const rmsnorm_implementation* table : kernels()) {
    const at::Tensor x = leaf({3, 7}, 1, at::kDouble), gamma = leaf({7}, 2, at::kDouble);
    const at::Tensor w = random({3, 7}, at::kDouble, 3), v = random({3, 7}, at::kDouble, 4);
    const auto first = [&](const at::Tensor& at_x, const at::Tensor& at_gamma, bool graph) {
      return (grad({(norm(*table, at_x, at_gamma) * w).sum()}, {at_x}, {}, true, graph)[0] * v)
          .sum();
    };
    const auto got = grad({first(x, gamma, true)}, {x, gamma});
    const auto want = reference::finite_differences(
        [&](const std::vector<at::Tensor>& inputs) {
          const at::Tensor at_x = inputs[0].to(test_device()).detach().requires_grad_();
          return first(at_x, inputs[1].to(test_device()), false).item<double>();
        },
        {x.detach().cpu(), gamma.detach().cpu()});
    CHECK(reference::worst_relative_error(got[0], want[0]) <= reference::kGradcheckBound);
    CHECK(reference::worst_relative_error(got[1], want[1]) <= reference::kGradcheckBound);
  }
}

/// What a backward was asked for.
struct Spied {
  static inline bool dx, dgamma;
  static inline std::size_t workspace;
  static inline const rmsnorm_implementation* table;
  static rmsnorm_implementation over(const rmsnorm_implementation& original) {
    table = &original;
    rmsnorm_implementation copy = original;
    copy.backward = [](const rmsnorm_backward_args* args) {
      dx = args->dx != nullptr;
      dgamma = args->dgamma != nullptr;
      workspace = args->workspace_bytes;
      return table->backward(args);
    };
    return copy;
  }
};

TEST_CASE("B024 a frozen gamma or a constant x costs no gradient and no scratch for it",
          "[autograd]") {
  for (const rmsnorm_implementation* table : kernels()) {
    const rmsnorm_implementation spied = Spied::over(*table);
    for (const bool x_wanted : {false, true}) {
      for (const bool gamma_wanted : {false, true}) {
        const at::Tensor x = random({40, 33}, at::kFloat).requires_grad_(x_wanted),
                         gamma = random({33}, at::kFloat, 2).requires_grad_(gamma_wanted);
        const at::Tensor y = norm(spied, x, gamma);
        CHECK(y.requires_grad() == (x_wanted || gamma_wanted));
        if (!y.requires_grad()) continue;
        const at::Tensor dy = random({40, 33}, at::kFloat, 3);
        y.backward(dy);
        CHECK(Spied::dx == x_wanted);
        CHECK(Spied::dgamma == gamma_wanted);
        if (!gamma_wanted) CHECK(Spied::workspace == 0);
        CHECK(x.grad().defined() == x_wanted);
        CHECK(gamma.grad().defined() == gamma_wanted);
        const Results both = run(*table, x, gamma, dy);
        if (x_wanted) CHECK(same_bits(x.grad(), both.dx));
        if (gamma_wanted) CHECK(same_bits(gamma.grad(), both.dgamma));
      }
    }
  }
}

TEST_CASE("B025 the backward has one entry for each argument, with gamma and without",
          "[autograd]") {
  for (const rmsnorm_implementation* table : kernels()) {
    const at::Tensor x = leaf({3, 33}, 1), gamma = leaf({33}, 2);
    CHECK_NOTHROW(norm(*table, x, gamma).sum().backward());
    CHECK_NOTHROW(norm(*table, x, {}).sum().backward());
    CHECK_NOTHROW(norm(*table, x.detach(), gamma).sum().backward());
    CHECK_NOTHROW(grad({norm(*table, x, {}).sum()}, {x}, {}, true, true));
    CHECK_NOTHROW(functional::rms_norm(x, {33}).sum().backward());
  }
}

TEST_CASE("B055 without gamma the operation is that of ones, in training too", "[autograd]") {
  const at::Tensor x = random({6, 33}, at::kFloat), dy = random({6, 33}, at::kFloat, 2);
  for (const rmsnorm_implementation* table : kernels()) {
    const Results got = run(*table, x, {}, dy);
    check_against_oracle(got, x, {}, dy);
    // Held to the oracle too, not to the bits: a compiler may fuse a product with one differently.
    check_against_oracle(run(*table, x, at::ones({33}, x.options()), dy), x,
                         at::ones({33}, x.options()), dy);
  }
  RMSNorm module(RMSNormOptions({33}).elementwise_affine(false));
  module->to(test_device());
  CHECK(module->parameters().empty());
  const at::Tensor input = x.clone().requires_grad_();
  module->forward(input).backward(dy);
  CHECK(input.grad().defined());
}

TEST_CASE("B061 forwards without a backward leave no memory behind", "[autograd]") {
  const at::Tensor x = leaf({64, 257}, 1), gamma = leaf({257}, 2);
  const auto forwards = [&](int count) {
    for (int i = 0; i < count; ++i) static_cast<void>(functional::rms_norm(x, gamma));
    return allocated_bytes(test_device());
  };
  const std::int64_t warm = forwards(100);
  CHECK(forwards(10000) - warm <= kMemoryNoise);
  CHECK(x.use_count() == 1);
}

TEST_CASE("B065 each backward gives the gradient of its own call, and autograd adds them up",
          "[autograd]") {
  for (const rmsnorm_implementation* table : kernels()) {
    const at::Tensor a = random({40, 65}, at::kFloat), b = random({40, 65}, at::kFloat, 2),
                     dy = random({40, 65}, at::kFloat, 3), gamma = leaf({65}, 4);
    const at::Tensor of_a = run(*table, a, gamma, dy).dgamma,
                     of_b = run(*table, b, gamma, dy).dgamma;
    CHECK(same_bits(run(*table, a, gamma, dy).dgamma, of_a));
    norm(*table, a, gamma).backward(dy);
    norm(*table, b, gamma).backward(dy);
    CHECK(same_bits(gamma.grad(), of_a + of_b));
  }
}

TEST_CASE("B074 a saved tensor that was modified in place is an error, not a wrong gradient",
          "[autograd]") {
  for (const rmsnorm_implementation* table : kernels()) {
    for (const int which : {0, 1, 2, 3}) {  // x, gamma, a non-leaf x, an x that had to be copied
      const at::Tensor base = leaf({8, 8}, 1), gamma = leaf({8}, 2);
      const at::Tensor made = base * 1;
      const at::Tensor x = which == 2 ? made : which == 3 ? made.t() : base;
      const at::Tensor y = norm(*table, x, gamma);
      {
        const c10::NoGradGuard no_grad;
        at::Tensor changed = which == 1 ? gamma : which == 0 ? base : made;
        changed.add_(1);
      }
      CAPTURE(which);
      CHECK_THROWS_WITH(y.sum().backward(), contains_text("modified by an inplace operation"));
    }
  }
}

TEST_CASE("B097 results share no memory with inputs or each other, whichever comes first",
          "[autograd]") {
  const at::Tensor x = random({5, 33}, at::kFloat), gamma = random({33}, at::kFloat, 2),
                   dy = random({5, 33}, at::kFloat, 3);
  for (const rmsnorm_implementation* table : kernels()) {
    const Results got = run(*table, x, gamma, dy);
    std::set<const void*> storages;
    for (const at::Tensor& tensor : {x, gamma, dy, got.y, got.dx, got.dgamma}) {
      storages.insert(tensor.storage().data());
    }
    CHECK(storages.size() == 6);
    const auto want = reference::closed_form_backward(x, gamma, dy, 1e-6);
    const Results after = run(*table, x, gamma, dy);
    CHECK(same_results(got, after));
    CHECK(max_abs_difference(after.dx, want.dx) <= 1e-5);
  }
}

TEST_CASE("B112 without a gradient to compute nothing is kept", "[autograd]") {
  const at::Tensor gamma = random({257}, at::kFloat, 2);
  at::Tensor x = random({64, 257}, at::kFloat);
  const c10::weak_intrusive_ptr<c10::TensorImpl> watched(x.getIntrusivePtr());
  const at::Tensor y = functional::rms_norm(x, gamma);
  x.reset();
  CHECK(watched.expired());
  CHECK_FALSE(y.requires_grad());
  at::Tensor wanted = leaf({64, 257}, 1);
  const c10::weak_intrusive_ptr<c10::TensorImpl> watched_leaf(wanted.getIntrusivePtr());
  {
    const c10::NoGradGuard no_grad;
    const at::Tensor quiet = functional::rms_norm(wanted, gamma);
    wanted.reset();
    CHECK(watched_leaf.expired());
  }
  // y alone is new: no statistic, no copy.
  const std::int64_t before = allocated_bytes(test_device());
  const at::Tensor large = random({1024, 1024}, at::kFloat);
  const std::int64_t between = allocated_bytes(test_device());
  const at::Tensor result = functional::rms_norm(large, random({1024}, at::kFloat));
  const std::int64_t after = allocated_bytes(test_device());
  CHECK(after - between <= between - before + kMemoryNoise);
}

TEST_CASE("B123 recorded or not, the bits are the same", "[autograd]") {
  for (const rmsnorm_implementation* table : kernels()) {
    for (const at::ScalarType type : all_types()) {
      const at::Tensor x = leaf({9, 257}, 1, type), gamma = leaf({257}, 2, type);
      const at::Tensor recorded = norm(*table, x, gamma);
      const c10::NoGradGuard no_grad;
      CHECK(same_bits(norm(*table, x, gamma), recorded));
      const c10::InferenceMode inference;
      CHECK(same_bits(norm(*table, x, gamma), recorded));
    }
  }
}

TEST_CASE("B125 the grad mode belongs to the thread and survives exceptions", "[autograd]") {
  const at::Tensor x = leaf({200, 257}, 1), gamma = leaf({257}, 2);
  {
    const c10::NoGradGuard no_grad;
    bool recorded = false;
    std::thread([&] { recorded = functional::rms_norm(x, gamma).requires_grad(); }).join();
    CHECK(recorded);  // the guard is the main thread's
    CHECK_FALSE(functional::rms_norm(x, gamma).requires_grad());
  }
  CHECK(functional::rms_norm(x, gamma).requires_grad());
  rmsnorm_implementation throwing = *kernels()[0];
  throwing.forward = [](const rmsnorm_forward_args*) -> std::int32_t { return 719; };
  for (const bool enabled : {true, false}) {
    const c10::AutoGradMode mode(enabled);
    CHECK_THROWS_AS(norm(throwing, x, gamma), CudaError);
    CHECK(c10::GradMode::is_enabled() == enabled);
    CHECK(name(check_table(throwing, Operation::gamma, {3, 33}).state) == "error");
    CHECK(c10::GradMode::is_enabled() == enabled);
  }
}

TEST_CASE("B083 a module without a weight moves, trains and is saved beside others", "[autograd]") {
  torch::nn::Sequential net(torch::nn::Linear(8, 33),
                            RMSNorm(RMSNormOptions({33}).elementwise_affine(false)),
                            RMSNorm(RMSNormOptions({33})), torch::nn::Linear(33, 2));
  net->to(test_device());
  CHECK(net->parameters().size() == 5);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-2));
  const at::Tensor before = net->parameters()[2].detach().clone();
  for (int step = 0; step < 3; ++step) {
    adam.zero_grad();
    net->forward(random({5, 8}, at::kFloat)).square().sum().backward();
    adam.step();
  }
  CHECK_FALSE(same_bits(net->parameters()[2].detach(), before));
  std::stringstream stream;
  torch::save(net, stream);
  torch::load(net, stream, test_device());
  net->to(at::kHalf);
  CHECK(net->forward(random({5, 8}, at::kHalf)).scalar_type() == at::kHalf);
}

TEST_CASE("B120 no weight is no multiplication, and nothing in an archive", "[autograd]") {
  RMSNorm module(RMSNormOptions({33}).elementwise_affine(false));
  CHECK(module->buffers().empty());
  CHECK(module->named_parameters().is_empty());
  const at::Tensor x = random({3, 33}, at::kFloat);
  const at::Tensor want = module->forward(x);
  std::stringstream stream;
  torch::save(module, stream);
  RMSNorm loaded(RMSNormOptions({33}).elementwise_affine(false));
  torch::load(loaded, stream);
  loaded->to(at::kHalf);
  loaded->to(at::kFloat);
  loaded->to(test_device());
  CHECK(same_bits(loaded->forward(x), want));
}

TEST_CASE("B134 dgamma of all rows is the sum of its halves', also of an empty one", "[autograd]") {
  const at::Tensor x = random({41, 65}, at::kDouble), gamma = random({65}, at::kDouble, 2),
                   dy = random({41, 65}, at::kDouble, 3);
  for (const rmsnorm_implementation* table : kernels()) {
    const at::Tensor all = run(*table, x, gamma, dy).dgamma;
    for (const std::int64_t cut : {0, 1, 20, 41}) {
      const auto part = [&](std::int64_t begin, std::int64_t count) {
        return run(*table, x.narrow(0, begin, count), gamma, dy.narrow(0, begin, count)).dgamma;
      };
      CHECK(max_abs_difference(part(0, cut) + part(cut, 41 - cut), all) <= 1e-12);
    }
  }
}

TEST_CASE("B046 gamma gets its gradient and moves by it", "[autograd]") {
  RMSNorm module(RMSNormOptions({33}));
  module->to(test_device());
  REQUIRE(module->parameters().size() == 1);
  CHECK(module->weight.requires_grad());
  const at::Tensor x = random({9, 33}, at::kFloat), dy = random({9, 33}, at::kFloat, 2);
  const at::Tensor y = module->forward(x);
  CHECK_FALSE(y.is_leaf());
  y.backward(dy);
  const at::Tensor want = reference::expected_dgamma(x, dy, 1e-6).want.to(at::kFloat);
  const at::Tensor before = module->weight.detach().clone();
  {
    const c10::NoGradGuard no_grad;
    module->weight.sub_(module->weight.grad() * 0.1);
  }
  CHECK(max_abs_difference(module->weight, before - 0.1 * want) <= 1e-6);
  CHECK_FALSE(same_bits(module->weight.detach(), before));
}

}  // namespace
}  // namespace rmsnorm::test
