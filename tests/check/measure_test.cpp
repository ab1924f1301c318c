#include "check/measure.hpp"

#include <ATen/ATen.h>

#include <limits>

#include "check/buffers.hpp"
#include "check/memory.hpp"
#include "check/planted.hpp"
#include "operator/kernels.hpp"
#include "operator/tensors.hpp"
#include "support/catch.hpp"

// What huge cases need: results measured where they lie, parts compared, memory asked for first.

namespace rmsnorm::test {
namespace {

constexpr Dtype kDtypes[] = {Dtype::float64, Dtype::float32, Dtype::float16, Dtype::bfloat16};

at::Tensor normal(at::IntArrayRef sizes, std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::Device(at::kCPU)).clone();
  generator.set_current_seed(seed);
  return at::randn(sizes, generator, at::kDouble);
}

Bounds bounds_of(Dtype dtype, std::int64_t terms) {
  Bounds bounds;
  bounds.elementwise = check_config().tolerance.at(dtype);
  bounds.dtype = dtype;
  bounds.terms = terms;
  return bounds;
}

ComparisonResult one_by_one(const Bounds& bounds, const reference::Expected& expected,
                            const at::Tensor& got) {
  Comparison comparison(bounds, got.size(1));
  const auto span = [](const at::Tensor& tensor) {
    return std::span<const double>(tensor.const_data_ptr<double>(),
                                   static_cast<std::size_t>(tensor.numel()));
  };
  const at::Tensor values = got.to(at::kDouble).contiguous();
  comparison.add(span(expected.want), span(expected.magnitude), span(values));
  return comparison.finish();
}

TEST_CASE("Rows measured by tensor operations are judged as those looked at one by one",
          "[measure]") {
  for (const Dtype dtype : kDtypes) {
    for (const bool scaled : {false, true}) {
      for (const double factor : {1.0, 1 + 3e-4}) {  // within the elementwise rule, a wrong scale
        const at::Tensor want = normal({7, 257}, 1) * (scaled ? at::logspace(-3, 3, 7).view({7, 1})
                                                              : at::ones({7, 1}, at::kDouble));
        const reference::Expected expected{want, want.abs() * 1.5};
        const at::Tensor got = (want * factor).to(to_scalar_type(dtype));
        Bounds bounds = bounds_of(dtype, 257);
        bounds.elementwise.rtol = std::max(bounds.elementwise.rtol, 1e-3);
        bounds.scale_atol_by_row = bounds.one_rounding = scaled;
        const ComparisonResult plain = one_by_one(bounds, expected, got);
        Comparison comparison(bounds, 257);
        CAPTURE(name(dtype), scaled, factor, plain.reason);
        REQUIRE(add_measured(comparison, expected, got));
        const ComparisonResult measured = comparison.finish();
        CHECK(name(measured.state) == name(plain.state));
        CHECK(measured.reason.empty() == plain.reason.empty());
        CHECK(measured.compared == plain.compared);
        CHECK(measured.worst_index == plain.worst_index);
        CHECK(measured.expected == plain.expected);
        CHECK(measured.got == plain.got);
        CHECK(measured.max_abs_error == plain.max_abs_error);
        CHECK(measured.max_rel_error == Approx(plain.max_rel_error));
        CHECK(measured.used_of_tolerance == Approx(plain.used_of_tolerance));
        CHECK(measured.row_rel_l2 == Approx(plain.row_rel_l2));
      }
    }
  }
}

TEST_CASE("What is out of tolerance or not finite is left to be looked at one by one",
          "[measure]") {
  const at::Tensor want = normal({3, 33}, 1);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double wrong : {2.0, nan, infinity, -infinity}) {
    at::Tensor got = want.clone(), bad_want = want.clone();
    got[2][32].add_(wrong);
    bad_want[0][0].add_(wrong);
    Comparison comparison(bounds_of(Dtype::float32, 33), 33);
    CHECK_FALSE(add_measured(comparison, {want, want.abs()}, got));
    CHECK_FALSE(add_measured(comparison, {bad_want, want.abs()}, want));
    CHECK(comparison.finish().compared == 0);
  }
  Comparison comparison(bounds_of(Dtype::float32, 33), 33);
  CHECK_FALSE(add_measured(comparison, {want, want.abs() * nan}, want));
}

TEST_CASE("Measured and other rows of one comparison count on", "[measure]") {
  const at::Tensor want = normal({6, 33}, 1);
  const Bounds bounds = bounds_of(Dtype::float32, 33);
  const auto part = [&](std::int64_t begin) {
    const at::Tensor rows = want.narrow(0, begin, 2);
    return reference::Expected{rows, rows.abs()};
  };
  at::Tensor got = want.clone();
  got[3][5].add_(1);
  Comparison comparison(bounds, 33);
  CHECK(add_measured(comparison, part(0), got.narrow(0, 0, 2)));
  const at::Tensor middle = got.narrow(0, 2, 2).contiguous(), rows = want.narrow(0, 2, 2);
  CHECK_FALSE(add_measured(comparison, part(2), middle));
  const at::Tensor magnitude = rows.abs().contiguous();
  comparison.add({rows.const_data_ptr<double>(), 66}, {magnitude.const_data_ptr<double>(), 66},
                 {middle.const_data_ptr<double>(), 66});
  CHECK(add_measured(comparison, part(4), got.narrow(0, 4, 2)));
  const ComparisonResult result = comparison.finish();
  CHECK(name(result.state) == "failed");
  CHECK(result.compared == 6 * 33);
  CHECK(result.mismatched == 1);
  CHECK(result.worst_index == 3 * 33 + 5);
}

TEST_CASE("A case that the memory cannot hold is skipped with both amounts, and nothing is done",
          "[measure]") {
  rmsnorm_implementation table = *find_kernels("rowwise", RMSNORM_CPU);
  table.forward = [](const rmsnorm_forward_args*) -> std::int32_t { std::abort(); };
  for (const Operation operation : {Operation::forward, Operation::backward, Operation::gamma}) {
    const ComparisonResult result =
        check(table, operation, Case{std::int64_t{1} << 40, 1 << 12, Dtype::float16});
    CAPTURE(result.reason);
    CHECK(name(result.state) == "skipped");
    CHECK(result.reason.find("GiB of memory on cpu, which has") != std::string::npos);
    CHECK(result.compared == 0);
  }
  CHECK(available_bytes(at::kCPU) > 0);
}

TEST_CASE("A workspace that the memory cannot hold skips the case too", "[measure]") {
  rmsnorm_implementation table = *find_kernels("rowwise", RMSNORM_CPU);
  table.backward_workspace_bytes = [](const rmsnorm_backward_args*) {
    return std::size_t{1} << 55;
  };
  const ComparisonResult result = check(table, Operation::gamma, Case{3, 33});
  CHECK(name(result.state) == "skipped");
  CHECK(name(check(table, Operation::forward, Case{3, 33}).state) == "passed");
}

TEST_CASE("Tensors larger than a part are compared to the last bit", "[measure]") {
  const std::int64_t rows = (std::int64_t{1} << 16) + 3, cols = 1040;  // beyond 2^26 elements
  const at::Tensor a = at::zeros({rows, cols}, at::kByte);
  at::Tensor b = at::zeros({rows, cols}, at::kByte);
  CHECK(same_bits(a, b));
  for (const auto& [row, col] :
       {std::pair{rows - 1, cols - 1}, std::pair<std::int64_t, std::int64_t>{0, 0}}) {
    b[row][col].fill_(1);
    CHECK_FALSE(same_bits(a, b));
    CHECK_FALSE(same_bits(a.view({1, rows, cols}), b.view({1, rows, cols})));
    CHECK_FALSE(same_bits(a.view({-1}), b.view({-1})));
    b[row][col].fill_(0);
  }
  CHECK_FALSE(same_bits(at::zeros({2}), -at::zeros({2})));
  CHECK(same_bits(at::full({2}, NAN), at::full({2}, NAN)));
  CHECK_FALSE(same_bits(at::zeros({2}), at::zeros({3})));
}

}  // namespace
}  // namespace rmsnorm::test
