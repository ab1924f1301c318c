#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <thread>

#include "rmsnorm/functional.hpp"
#include "support/matchers.hpp"
#include "support/tensors.hpp"

// How the operation behaves as a node of libtorch's graph.

namespace rmsnorm::test {
namespace {

struct Leaves {
  at::Tensor x = random({5, 33}, at::kFloat).requires_grad_();
  at::Tensor gamma = random({33}, at::kFloat, 2).requires_grad_();
  at::Tensor dy = random({5, 33}, at::kFloat, 3);
  at::Tensor y() const { return functional::rms_norm(x, gamma); }
};

TEST_CASE("A kept graph gives the same gradients again, a freed one throws", "[graph]") {
  const Leaves leaves;
  const at::Tensor y = leaves.y();
  const auto first = torch::autograd::grad({y}, {leaves.x, leaves.gamma}, {leaves.dy}, true);
  const auto second = torch::autograd::grad({y}, {leaves.x, leaves.gamma}, {leaves.dy}, false);
  CHECK(same_bits(first[0], second[0]));
  CHECK(same_bits(first[1], second[1]));
  CHECK_THROWS_AS(torch::autograd::grad({y}, {leaves.x}, {leaves.dy}), c10::Error);
}

TEST_CASE("Gradients of several backward calls add up", "[graph]") {
  const Leaves leaves;
  leaves.y().backward(leaves.dy);
  const at::Tensor dx = leaves.x.grad().clone(), dgamma = leaves.gamma.grad().clone();
  leaves.y().backward(leaves.dy);
  CHECK(same_bits(leaves.x.grad(), dx + dx));
  CHECK(same_bits(leaves.gamma.grad(), dgamma + dgamma));
}

TEST_CASE("One gamma used twice gets the sum of both gradients", "[graph]") {
  const Leaves leaves;
  const at::Tensor x2 = random({5, 33}, at::kFloat, 9);
  const auto one = torch::autograd::grad({leaves.y()}, {leaves.gamma}, {leaves.dy});
  const auto two =
      torch::autograd::grad({functional::rms_norm(x2, leaves.gamma)}, {leaves.gamma}, {leaves.dy});
  const at::Tensor both = leaves.y() + functional::rms_norm(x2, leaves.gamma);
  const auto sum = torch::autograd::grad({both}, {leaves.gamma}, {leaves.dy});
  CHECK(same_bits(sum[0], one[0] + two[0]));
}

TEST_CASE("Changing x or gamma before the backward throws instead of giving wrong gradients",
          "[graph]") {
  for (const bool change_x : {true, false}) {
    for (const Contract contract : {Contract::minimum, Contract::full}) {
      CAPTURE(change_x, static_cast<int>(contract));
      const Leaves leaves;
      const at::Tensor y = functional::rms_norm(leaves.x, leaves.gamma, 1e-6, contract);
      {
        const c10::NoGradGuard no_grad;
        (change_x ? leaves.x : leaves.gamma).mul_(2);
      }
      CHECK_THROWS_WITH(y.backward(leaves.dy), contains_text("modified by an inplace operation"));
      CHECK_FALSE(leaves.x.grad().defined());
      CHECK_FALSE(leaves.gamma.grad().defined());
    }
  }
}

TEST_CASE("Changing y afterwards is harmless, as the backward does not need it", "[graph]") {
  const Leaves leaves;
  const auto want = torch::autograd::grad({leaves.y() * 2}, {leaves.x}, {leaves.dy});
  at::Tensor y = leaves.y();
  y.mul_(2);
  const auto got = torch::autograd::grad({y}, {leaves.x}, {leaves.dy});
  CHECK(same_bits(got[0], want[0]));
}

TEST_CASE("Hooks see and may replace gradients", "[graph]") {
  const Leaves leaves;
  const at::Tensor y = leaves.y();
  at::Tensor seen_dy, seen_dx;
  y.register_hook([&](const at::Tensor& grad) {
    seen_dy = grad.clone();
    return grad * 2;
  });
  leaves.x.register_hook([&](const at::Tensor& grad) { seen_dx = grad.clone(); });
  y.backward(leaves.dy);
  CHECK(same_bits(seen_dy, leaves.dy));
  CHECK(same_bits(seen_dx, leaves.x.grad()));
  const Leaves doubled;
  doubled.y().backward(doubled.dy * 2);
  CHECK(same_bits(leaves.x.grad(), doubled.x.grad()));
}

TEST_CASE("Without gradients y has the same bits and no graph", "[graph]") {
  for (const at::ScalarType type : all_types()) {
    const at::Tensor x = random({5, 33}, type).requires_grad_(), gamma = random({33}, type, 2);
    const at::Tensor recorded = functional::rms_norm(x, gamma);
    CHECK(recorded.requires_grad());
    {
      const c10::NoGradGuard no_grad;
      const at::Tensor y = functional::rms_norm(x, gamma);
      CHECK_FALSE(y.requires_grad());
      CHECK(same_bits(y, recorded));
    }
    at::Tensor inferred;
    {
      const c10::InferenceMode inference;
      inferred = functional::rms_norm(x, gamma);
      CHECK(inferred.is_inference());
      CHECK(same_bits(functional::rms_norm(x.clone(), gamma.clone()), recorded));
    }
    CHECK(same_bits(inferred.clone(), recorded));
    CHECK(same_bits(functional::rms_norm(x.detach(), gamma), recorded));
  }
}

TEST_CASE("The graph holds x and gamma, and lets go of them after the backward", "[graph]") {
  const Leaves leaves;
  const auto x_count = leaves.x.use_count(), gamma_count = leaves.gamma.use_count();
  {
    const at::Tensor y = leaves.y();
    y.backward(leaves.dy);
  }
  CHECK(leaves.x.use_count() == x_count);
  CHECK(leaves.gamma.use_count() == gamma_count);
  {
    const at::Tensor y = leaves.y();  // no backward at all
  }
  CHECK(leaves.x.use_count() == x_count);
  CHECK(leaves.gamma.use_count() == gamma_count);
}

TEST_CASE("Inputs and dy are never written", "[graph]") {
  const Leaves leaves;
  const at::Tensor x = leaves.x.detach().clone(), gamma = leaves.gamma.detach().clone(),
                   dy = leaves.dy.clone();
  const auto versions = [&] {
    return std::vector{leaves.x._version(), leaves.gamma._version(), leaves.dy._version()};
  };
  const auto before = versions();
  leaves.y().backward(leaves.dy);
  CHECK(same_bits(leaves.x, x));
  CHECK(same_bits(leaves.gamma, gamma));
  CHECK(same_bits(leaves.dy, dy));
  CHECK(versions() == before);
}

TEST_CASE("Eight threads at once get the bits that one thread gets", "[graph]") {
  const auto run = [](std::uint64_t seed) {
    const at::Tensor x = random({64, 257}, at::kFloat, seed).requires_grad_();
    const at::Tensor gamma = random({257}, at::kFloat, seed + 100).requires_grad_();
    const at::Tensor y = functional::rms_norm(x, gamma);
    y.backward(random({64, 257}, at::kFloat, seed + 200));
    return std::vector{y.detach(), x.grad(), gamma.grad()};
  };
  constexpr int kThreads = 8, kRounds = 5;
  std::vector<std::vector<at::Tensor>> want;
  for (int i = 0; i < kThreads; ++i) want.push_back(run(static_cast<std::uint64_t>(i)));
  std::vector<int> wrong(kThreads, 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        const auto got = run(static_cast<std::uint64_t>(i));
        for (std::size_t k = 0; k < got.size(); ++k) wrong[i] += !same_bits(got[k], want[i][k]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(kThreads, 0));
}

}  // namespace
}  // namespace rmsnorm::test
