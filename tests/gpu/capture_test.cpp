#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/autograd/autograd.h>

#include "rmsnorm/functional.hpp"
#include "support/catch.hpp"
#include "support/tensors.hpp"

namespace rmsnorm::test {
namespace {

struct Problem {
  at::Tensor x, gamma, dy;
};

Problem draw(at::ScalarType type, std::uint64_t seed) {
  return {random({33, 257}, type, seed), random({257}, type, seed + 1),
          random({33, 257}, type, seed + 2)};
}

/// y, and with `backward` dx and dgamma.
std::vector<at::Tensor> call(const Problem& problem, bool backward) {
  if (!backward) {
    const c10::NoGradGuard no_grad;
    return {functional::rms_norm(problem.x, problem.gamma)};
  }
  const at::Tensor x = problem.x.detach().requires_grad_(),
                   gamma = problem.gamma.detach().requires_grad_();
  const at::Tensor y = functional::rms_norm(x, gamma);
  const auto gradients = torch::autograd::grad({y}, {x, gamma}, {problem.dy});
  return {y.detach(), gradients[0], gradients[1]};
}

void check_capture(at::ScalarType type, bool backward) {
  const Problem problem = draw(type, 1), other = draw(type, 10);
  const auto want = call(problem, backward), want_other = call(other, backward);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);

  const auto stream = c10::cuda::getStreamFromPool();
  at::cuda::CUDAGraph graph;
  std::vector<at::Tensor> captured;
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    for (int i = 0; i < 3; ++i) static_cast<void>(call(problem, backward));  // warm-up
    stream.synchronize();
    graph.capture_begin();
    captured = call(problem, backward);
    graph.capture_end();

    const auto check_replay = [&](const Problem& values, const std::vector<at::Tensor>& expected) {
      at::Tensor x = problem.x, gamma = problem.gamma, dy = problem.dy;
      if (!x.is_same(values.x)) {
        x.copy_(values.x);
        gamma.copy_(values.gamma);
        dy.copy_(values.dy);
      }
      for (int i = 0; i < 3; ++i) {
        for (at::Tensor& result : captured) result.fill_(-7);
        graph.replay();
        stream.synchronize();
        for (std::size_t k = 0; k < expected.size(); ++k) {
          CAPTURE(k, i);
          CHECK(same_bits(captured[k], expected[k]));
        }
      }
    };
    check_replay(problem, want);
    check_replay(other, want_other);
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("A captured forward replays on new values", "[capture]") {
  for (const at::ScalarType type : all_types()) {
    CAPTURE(text(type));
    check_capture(type, false);
  }
}

TEST_CASE("A captured forward and backward replays on new values", "[capture]") {
  for (const at::ScalarType type : all_types()) {
    CAPTURE(text(type));
    check_capture(type, true);
  }
}

}  // namespace
}  // namespace rmsnorm::test
