#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/autograd/autograd.h>

#include "operator/device.hpp"
#include "rmsnorm/functional.hpp"
#include "support/matchers.hpp"
#include "support/tensors.hpp"

// Devices, streams and sizes that only CUDA has. The behaviour that every device shares is in
// tests/operator.

namespace rmsnorm::test {
namespace {

int current_device() {
  int device = -1;
  CHECK(cudaGetDevice(&device) == cudaSuccess);
  return device;
}

/// Forward and backward; y, dx, dgamma.
std::vector<at::Tensor> run(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& dy) {
  const at::Tensor leaf = x.detach().requires_grad_(), weight = gamma.detach().requires_grad_();
  const at::Tensor y = functional::rms_norm(leaf, weight);
  const auto gradients = torch::autograd::grad({y}, {leaf, weight}, {dy});
  return {y.detach(), gradients[0], gradients[1]};
}

void check_same_bits(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(got[i], want[i]));
  }
}

TEST_CASE("B054 Tensors of two devices are refused, and the next call works", "[device]") {
  const at::Tensor x = random({3, 33}, at::kFloat), gamma = random({33}, at::kFloat, 2);
  for (const Contract contract : {Contract::minimum, Contract::full}) {
    CHECK_THROWS_AS(functional::rms_norm(x, gamma.cpu(), 1e-6, contract), ContractError);
    CHECK_THROWS_WITH(functional::rms_norm(x, gamma.cpu(), 1e-6, contract),
                      contains_text("gamma must be on x's device cuda:0; got cpu"));
    CHECK_THROWS_WITH(functional::rms_norm(x.cpu(), gamma, 1e-6, contract),
                      contains_text("gamma must be on x's device cpu; got cuda:0"));
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    const at::Tensor y = functional::rms_norm(x, gamma, 1e-6, contract);
    CHECK(used_of_rounding(y, reference::expected_y(x, gamma, 1e-6), 33) <= 1);
  }
}

TEST_CASE("Results are on x's device and no error is left behind", "[device]") {
  for (const at::ScalarType type : all_types()) {
    const auto results =
        run(random({5, 257}, type), random({257}, type, 2), random({5, 257}, type, 3));
    for (const at::Tensor& result : results) CHECK(result.device() == test_device());
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaGetLastError() == cudaSuccess);
  }
  static_cast<void>(run(at::empty({0, 8}, options(at::kFloat)), random({8}, at::kFloat),
                        at::empty({0, 8}, options(at::kFloat))));
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("A call leaves the current device and stream as they were", "[device]") {
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int device = current_device();
  static_cast<void>(run(random({5, 33}, at::kFloat), random({33}, at::kFloat, 2),
                        random({5, 33}, at::kFloat, 3)));
  CHECK(current_device() == device);
  CHECK(c10::cuda::getCurrentCUDAStream() == stream);
}

TEST_CASE("B005 Work is ordered on the current stream, also when it is not the default",
          "[device]") {
  constexpr std::int64_t kCycles = 100'000'000;  // some 50 ms: ages for a kernel that did not wait
  const at::Tensor x = random({64, 257}, at::kFloat), gamma = random({257}, at::kFloat, 2),
                   dy = random({64, 257}, at::kFloat, 3);
  const auto want = run(x, gamma, dy);
  at::Tensor late_x = at::full_like(x, 7), late_dy = at::full_like(dy, 7);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);

  const auto stream = c10::cuda::getStreamFromPool();
  std::vector<at::Tensor> got;
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    at::cuda::sleep(kCycles);
    late_x.copy_(x);
    late_dy.copy_(dy);
    got = run(late_x, gamma, late_dy);
    // Behind the call on the same stream: too late to be seen by it.
    late_x.fill_(-1);
    late_dy.fill_(-1);
  }
  stream.synchronize();
  check_same_bits(got, want);
}

TEST_CASE("A call does not wait for the device", "[device]") {
  const at::Tensor x = random({3, 33}, at::kFloat), gamma = random({33}, at::kFloat, 2);
  static_cast<void>(functional::rms_norm(x, gamma));  // warm
  const auto stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  static_cast<void>(functional::rms_norm(x, gamma));
  stream.synchronize();
  at::cuda::sleep(2'000'000'000);  // about a second
  static_cast<void>(functional::rms_norm(x, gamma));
  CHECK_FALSE(stream.query());  // the sleep still runs
  stream.synchronize();
}

TEST_CASE("Grids larger than 65535 rows are covered", "[device]") {
  const at::Tensor x = random({70000, 3}, at::kFloat), gamma = random({3}, at::kFloat, 2),
                   dy = random({70000, 3}, at::kFloat, 3);
  const auto got = run(x, gamma, dy);
  CHECK(used_of_rounding(got[0], reference::expected_y(x, gamma, 1e-6), 3) <= 1);
  CHECK(used_of_rounding(got[1], reference::expected_dx(x, gamma, dy, 1e-6), 3) <= 1);
  CHECK(used_of_rounding(got[2], reference::expected_dgamma(x, dy, 1e-6), 70000 + 3) <= 1);
}

TEST_CASE("Long rows are covered", "[device]") {
  for (const std::int64_t cols : {16384, 65537, 262144}) {
    CAPTURE(cols);
    const at::Tensor x = random({3, cols}, at::kHalf), gamma = random({cols}, at::kHalf, 2),
                     dy = random({3, cols}, at::kHalf, 3);
    const auto got = run(x, gamma, dy);
    CHECK(used_of_rounding(got[0], reference::expected_y(x, gamma, 1e-6), cols) <= 1);
    CHECK(used_of_rounding(got[1], reference::expected_dx(x, gamma, dy, 1e-6), cols) <= 1);
    CHECK(used_of_rounding(got[2], reference::expected_dgamma(x, dy, 1e-6), cols + 3) <= 1);
  }
}

TEST_CASE("B013 Offsets beyond 2^31 elements are right", "[large]") {
  constexpr std::int64_t kCols = 4096, kRows = (std::int64_t{1} << 19) + 3;
  constexpr std::size_t kNeededBytes = std::size_t{40} << 30;
  std::size_t free_bytes = 0, total_bytes = 0;
  REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
  if (free_bytes < kNeededBytes) {
    WARN("left out: needs 40 GiB of free device memory; has " << (free_bytes >> 30) << " GiB");
    return;
  }
  at::Tensor x = at::ones({kRows, kCols}, options(at::kHalf));
  const at::Tensor tail = random({5, kCols}, at::kHalf), gamma = random({kCols}, at::kFloat, 2);
  x.narrow(0, kRows - 5, 5).copy_(tail);
  const at::Tensor one_dy = random({1, kCols}, at::kHalf, 3);
  const auto got = run(x, gamma, one_dy.expand({kRows, kCols}));
  const auto want = run(tail, gamma, one_dy.expand({5, kCols}));
  CHECK(same_bits(got[0].narrow(0, kRows - 5, 5), want[0]));
  CHECK(same_bits(got[1].narrow(0, kRows - 5, 5), want[1]));
  CHECK(same_bits(got[0][0], got[0][kRows - 6]));
  CHECK(same_bits(got[1][0], got[1][kRows - 6]));
  // kRows - 5 equal rows of x_hat = 0.9999995, and the five of the tail.
  const at::Tensor dgamma = one_dy[0].to(at::kDouble) * (kRows - 5) * (1 / std::sqrt(1 + 1e-6)) +
                            reference::expected_dgamma(tail, one_dy.expand({5, kCols}), 1e-6).want;
  const at::Tensor magnitude = one_dy[0].abs().to(at::kDouble) * kRows + 100;
  const double relative = accumulation_bound(Dtype::float32, kRows) + 1e-6;
  CHECK(((got[2].to(at::kDouble) - dgamma).abs() / magnitude).max().item<double>() <= relative);
}

TEST_CASE("B007 x on the second device is computed there, and the first stays current",
          "[multi_device]") {
  if (!cuda_problem(1).empty()) {
    WARN("left out: " << cuda_problem(1));
    return;
  }
  const c10::Device second(c10::kCUDA, 1);
  const at::Tensor x = random({5, 257}, at::kFloat), gamma = random({257}, at::kFloat, 2),
                   dy = random({5, 257}, at::kFloat, 3);
  const auto want = run(x, gamma, dy);
  REQUIRE(current_device() == 0);
  const auto got = run(x.to(second), gamma.to(second), dy.to(second));
  CHECK(current_device() == 0);
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].device() == second);
    CHECK(same_bits(got[i].cpu(), want[i].cpu()));
  }
  CHECK_THROWS_WITH(functional::rms_norm(x.to(second), gamma),
                    contains_text("gamma must be on x's device cuda:1; got cuda:0"));
  CHECK(current_device() == 0);
  check_same_bits(run(x, gamma, dy), want);
}

}  // namespace
}  // namespace rmsnorm::test
