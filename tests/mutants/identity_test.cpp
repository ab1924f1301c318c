#include <ATen/ATen.h>

#include <set>
#include <string>
#include <vector>

#include "kernels/common/tuned_faults.hpp"
#include "kernels/cpu/tuned.hpp"
#include "kernels/mutants/mutants.hpp"
#include "operator/execution.hpp"
#include "operator/kernels.hpp"
#include "support/catch.hpp"

using rmsnorm::kernels::Fault;
using rmsnorm::kernels::find_mutant;
using rmsnorm::kernels::Original;

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

/// Whether both tables give the same bits on what draw() gives for the dtypes; without gamma too.
void check_same_bits(const rmsnorm_implementation& want, const rmsnorm_implementation& got,
                     at::ScalarType dtype, at::ScalarType gamma_dtype,
                     const std::vector<std::int64_t>& all_cols) {
  for (const std::int64_t rows : {1, 2, 31, 33, 130}) {
    for (const std::int64_t cols : all_cols) {
      for (const bool with_gamma : {true, false}) {
        CAPTURE(c10::toString(dtype), rows, cols, with_gamma);
        Inputs in = draw(rows, cols, dtype, gamma_dtype);
        if (!with_gamma && dtype != gamma_dtype) continue;
        if (!with_gamma) in.gamma = at::Tensor();
        const auto wanted = rmsnorm::run_forward(want, in.x, in.gamma, 1, 1e-6, true);
        const auto result = rmsnorm::run_forward(got, in.x, in.gamma, 1, 1e-6, true);
        REQUIRE(same_bits(result.y, wanted.y));
        REQUIRE(same_bits(result.rstd, wanted.rstd));
        const auto backward_of = [&](const rmsnorm_implementation& table) {
          return rmsnorm::run_backward(table, in.x, in.dy, in.gamma, wanted.rstd, 1, 1e-6, true,
                                       with_gamma);
        };
        const auto wanted_grads = backward_of(want), grads = backward_of(got);
        REQUIRE(same_bits(grads.dx, wanted_grads.dx));
        if (with_gamma) REQUIRE(same_bits(grads.dgamma, wanted_grads.dgamma));
      }
    }
  }
}

}  // namespace

TEST_CASE("the mutants' kernels without a fault give the product's bits", "[identity]") {
  const std::vector<std::int64_t> cols{1, 3, 31, 32, 33, 256, 257, 1025};
  const auto& rowwise = *rmsnorm::find_kernels("rowwise", RMSNORM_CPU);
  const auto& rowwise_control = *find_mutant(Original::rowwise, Fault::none, RMSNORM_CPU);
  check_same_bits(rowwise, rowwise_control, at::kFloat, at::kFloat, cols);
  check_same_bits(rowwise, rowwise_control, at::kHalf, at::kHalf, cols);
  check_same_bits(rowwise, rowwise_control, at::kBFloat16, at::kFloat, cols);

  // tuned: also longer than a piece of a row, and shared by threads.
  const std::vector<std::int64_t> long_cols{1, 3, 31, 32, 33, 256, 257, 1025, 8193, 70000};
  using namespace rmsnorm::kernels::cpu;
  const auto& tuned = *tuned_table(Isa::generic);
  const auto& tuned_control = *find_mutant(Original::tuned, Fault::none, RMSNORM_CPU);
  check_same_bits(tuned, tuned_control, at::kFloat, at::kFloat, long_cols);
  check_same_bits(tuned, tuned_control, at::kHalf, at::kHalf, long_cols);
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
    const auto* table = find_mutant(Original::rowwise, info.fault, RMSNORM_CPU);
    CHECK((table != nullptr) == (info.pass != rmsnorm::kernels::FaultPass::autograd));
  }
}

TEST_CASE("tuned has mutants of forty faults of kernels and more, each with one dtype",
          "[identity]") {
  std::size_t count = 0;
  for (const auto& info : rmsnorm::kernels::kFaults) {
    CAPTURE(info.name);
    const auto* table = find_mutant(Original::tuned, info.fault, RMSNORM_CPU);
    REQUIRE((table != nullptr) == rmsnorm::kernels::is_tuned_fault(info.fault));
    if (table == nullptr) continue;
    ++count;
    CHECK(info.pass != rmsnorm::kernels::FaultPass::autograd);
    std::set<std::int32_t> taken;
    for (const std::int32_t dtype :
         {RMSNORM_FLOAT64, RMSNORM_FLOAT32, RMSNORM_FLOAT16, RMSNORM_BFLOAT16}) {
      rmsnorm_forward_args args{};
      args.x.dtype = args.gamma_dtype = dtype;
      const char* refusal = table->forward_refusal(&args);
      if (refusal == nullptr) taken.insert(dtype);
      if (refusal != nullptr) CHECK(std::string(refusal).find("float") != std::string::npos);
    }
    CHECK(taken.size() == 1);
    CHECK(taken.count(rmsnorm::kernels::needs_16_bits(info.fault) ? RMSNORM_FLOAT16
                                                                  : RMSNORM_FLOAT32) == 1);
  }
  CHECK(count == std::size(rmsnorm::kernels::kTunedFaults));
  CHECK(count >= 40);
}
