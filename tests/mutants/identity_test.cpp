#include <ATen/ATen.h>

#include <set>
#include <string>

#include "kernels/mutants/mutants.hpp"
#include "operator/execution.hpp"
#include "operator/kernels.hpp"
#include "support/catch.hpp"

using rmsnorm::kernels::Fault;

namespace {

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.view(at::kByte), b.view(at::kByte));
}

/// x and dy as rows of a wider buffer, gamma in another dtype where that is asked for.
struct Inputs {
  at::Tensor x, dy, gamma;
};

Inputs draw(std::int64_t rows, std::int64_t cols, at::ScalarType dtype, at::ScalarType gamma) {
  at::manual_seed(static_cast<std::uint64_t>(rows * 10007 + cols));
  const auto wide = [&] { return at::randn({rows, cols + 8}).to(dtype).narrow(1, 0, cols); };
  return {wide(), wide(), at::randn({cols}).to(gamma)};
}

}  // namespace

TEST_CASE("the mutants' kernels without a fault give the product's bits", "[identity]") {
  const auto& product = *rmsnorm::find_kernels("rowwise", RMSNORM_CPU);
  const auto& control = *rmsnorm::kernels::find_mutant(Fault::none, RMSNORM_CPU);
  const std::pair<at::ScalarType, at::ScalarType> dtypes[] = {
      {at::kFloat, at::kFloat}, {at::kHalf, at::kHalf}, {at::kBFloat16, at::kFloat}};
  for (const auto& [dtype, gamma_dtype] : dtypes) {
    for (const std::int64_t rows : {1, 2, 31, 33, 130}) {
      for (const std::int64_t cols : {1, 3, 31, 32, 33, 256, 257, 1025}) {
        CAPTURE(c10::toString(dtype), rows, cols);
        const Inputs in = draw(rows, cols, dtype, gamma_dtype);
        const auto want = rmsnorm::run_forward(product, in.x, in.gamma, 1, 1e-6, true);
        const auto got = rmsnorm::run_forward(control, in.x, in.gamma, 1, 1e-6, true);
        REQUIRE(same_bits(got.y, want.y));
        REQUIRE(same_bits(got.rstd, want.rstd));
        const auto want_grads =
            rmsnorm::run_backward(product, in.x, in.dy, in.gamma, want.rstd, 1, 1e-6, true, true);
        const auto got_grads =
            rmsnorm::run_backward(control, in.x, in.dy, in.gamma, want.rstd, 1, 1e-6, true, true);
        REQUIRE(same_bits(got_grads.dx, want_grads.dx));
        REQUIRE(same_bits(got_grads.dgamma, want_grads.dgamma));
      }
    }
  }
}

TEST_CASE("every fault has a name of its own, a source and a table exactly if it is in a kernel",
          "[identity]") {
  REQUIRE(rmsnorm::kernels::kFaultCount >= 40);
  std::set<std::string> names;
  for (const auto& info : rmsnorm::kernels::kFaults) {
    CAPTURE(info.name);
    CHECK(names.insert(info.name).second);
    const std::string source = info.source;
    const bool is_public =
        source.find('/') != std::string::npos && source.find('#') != std::string::npos;
    CHECK((is_public || source == RMSNORM_TUTORIAL));
    CHECK_FALSE(std::string(info.what).empty());
    const auto* table = rmsnorm::kernels::find_mutant(info.fault, RMSNORM_CPU);
    CHECK((table != nullptr) == (info.pass != rmsnorm::kernels::FaultPass::autograd));
  }
}
