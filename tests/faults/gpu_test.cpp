#include <c10/core/CachingDeviceAllocator.h>
#include <cuda_runtime_api.h>
#include <torch/serialize.h>

#include <sstream>

#include "faults/support.hpp"
#include "operator/device.hpp"
#include "rmsnorm/module.hpp"

// Faults that only a GPU shows.

namespace rmsnorm::test {
namespace {

TEST_CASE("B043 a launch that fails is an error at once, and the next call works", "[faults_gpu]") {
  const at::Tensor x = random({7, 257}, at::kFloat), gamma = random({257}, at::kFloat, 2),
                   dy = random({7, 257}, at::kFloat, 3);
  for (const rmsnorm_implementation* table : kernels()) {
    const Results want = run(*table, x, gamma, dy);  // also warms the allocator
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    // Work on the legacy stream is forbidden while a stream that synchronises with it is captured.
    cudaStream_t blocking = nullptr;
    REQUIRE(cudaStreamCreate(&blocking) == cudaSuccess);
    REQUIRE(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    {
      rmsnorm_forward_args args{};
      args.rows = 7;
      args.cols = 257;
      args.x = {.data = x.const_data_ptr(),
                .inner_rows = 7,
                .inner_stride = 257,
                .outer_stride = 7 * 257,
                .dtype = RMSNORM_FLOAT32};
      args.gamma = gamma.const_data_ptr();
      args.gamma_dtype = RMSNORM_FLOAT32;
      at::Tensor y = at::empty_like(x);
      args.y = y.mutable_data_ptr();
      args.eps = 1e-6;
      args.stream = nullptr;
      const std::int32_t status = table->forward(&args);
      CAPTURE(table->name, status);
      CHECK(status == cudaErrorStreamCaptureImplicit);
      CHECK_THROWS_AS(require_ok(*table, "rms_norm forward", status), CudaError);
      CHECK_THROWS_WITH(require_ok(*table, "rms_norm forward", status), contains_text(table->name));
    }
    cudaGraph_t graph = nullptr;
    static_cast<void>(cudaStreamEndCapture(blocking, &graph));
    if (graph != nullptr) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    static_cast<void>(cudaGetLastError());
    CHECK(cudaStreamDestroy(blocking) == cudaSuccess);
    CHECK(same_results(run(*table, x, gamma, dy), want));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaGetLastError() == cudaSuccess);
  }
}

TEST_CASE("B108 a backward's memory is dx and a little more", "[faults_gpu]") {
  constexpr std::int64_t kRows = 131072, kCols = 8192;  // 2 GiB of bfloat16
  constexpr std::int64_t kNeeded = std::int64_t{12} << 30, kLittle = std::int64_t{64} << 20;
  c10::DeviceAllocator& allocator = *c10::getDeviceAllocator(c10::DeviceType::CUDA);
  allocator.emptyCache();
  if (static_cast<std::int64_t>(allocator.getMemoryInfo(0).first) < kNeeded) {
    WARN("left out: needs 12 GiB of free device memory");
    return;
  }
  const at::Tensor x = at::ones({kRows, kCols}, options(at::kBFloat16)).requires_grad_(),
                   gamma = at::ones({kCols}, options(at::kBFloat16)).requires_grad_();
  const at::Tensor y = functional::rms_norm(x, gamma);
  const at::Tensor dy = at::ones_like(y.detach());
  const auto bytes = [&] { return allocator.getDeviceStats(0).allocated_bytes[0]; };
  allocator.resetPeakStats(0);
  const std::int64_t before = bytes().current;
  const auto gradients = torch::autograd::grad({y}, {x, gamma}, {dy});
  CHECK(bytes().peak - before <= kRows * kCols * 2 + kLittle);
  CHECK(gradients[1].to(at::kDouble).sub(kRows).abs().max().item<double>() <= kRows / 256.0);
}

TEST_CASE("B041 a module that a GPU saved loads where there is none", "[faults_gpu]") {
  RMSNorm saved(RMSNormOptions({33}));
  saved->to(test_device());
  std::stringstream stream;
  torch::save(saved, stream);
  RMSNorm loaded(RMSNormOptions({33}));
  torch::load(loaded, stream, c10::Device(at::kCPU));
  CHECK(loaded->weight.is_cpu());
  CHECK(loaded->forward(at::ones({3, 33})).is_cpu());
}

TEST_CASE("B088 a device that the kernels were not compiled for is named with what they were",
          "[faults_gpu]") {
  // Here they run: the kernels compiled for another device are a build of their own (tests/README).
  CHECK(cuda_problem(0).empty());
  CHECK(cuda_facts(0).sm >= 50);
  CHECK_THAT(cuda_problem(99), contains_text("cuda:99 does not exist"));
}

}  // namespace
}  // namespace rmsnorm::test
