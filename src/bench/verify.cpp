#include "bench/verify.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <span>

#include "check/check.hpp"
#include "reference/reference.hpp"

namespace rmsnorm::bench {
namespace {

constexpr std::int64_t kAllElements = std::int64_t{1} << 24;    // up to here every row is looked at
constexpr std::int64_t kSliceElements = std::int64_t{1} << 23;  // in float64 at a time
constexpr std::int64_t kBlockElements = std::int64_t{1} << 20;  // of each of the three blocks

struct RowRange {
  std::int64_t begin, count;
};

std::vector<RowRange> slices(std::int64_t rows, std::int64_t cols) {
  const std::int64_t slice = std::max<std::int64_t>(1, kSliceElements / cols);
  std::vector<RowRange> ranges;
  for (std::int64_t begin = 0; begin < rows; begin += slice) {
    ranges.push_back({begin, std::min(slice, rows - begin)});
  }
  return ranges;
}

std::vector<RowRange> looked_at(std::int64_t rows, std::int64_t cols) {
  const std::int64_t block = std::max<std::int64_t>(1, kBlockElements / cols);
  if (rows <= kAllElements / cols || rows < 3 * block) return slices(rows, cols);
  return {{0, block}, {(rows - block) / 2, block}, {rows - block, block}};
}

at::Tensor values(const at::Tensor& tensor) {
  return tensor.to(at::kDouble).cpu().contiguous();
}

std::span<const double> span(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<double>(), static_cast<std::size_t>(tensor.numel())};
}

void add(Comparison& comparison, const reference::Expected& expected, const at::Tensor& got) {
  const at::Tensor want = values(expected.want), magnitude = values(expected.magnitude),
                   result = values(got);
  comparison.add(span(want), span(magnitude), span(result));
}

ComparisonResult verify_rows(Operation operation, const at::Tensor& output, const Case& problem,
                             const CaseInputs& inputs, const Config& config) {
  Comparison comparison(bounds_for(operation, problem, config), problem.cols);
  const at::Tensor got = output.detach().reshape({problem.rows, problem.cols});
  for (const auto& [begin, count] : looked_at(problem.rows, problem.cols)) {
    const at::Tensor x = inputs.x().narrow(0, begin, count);
    const reference::Expected expected =
        operation == Operation::forward
            ? reference::expected_y(x, inputs.gamma(), config.epsilon)
            : reference::expected_dx(x, inputs.gamma(), inputs.dy().narrow(0, begin, count),
                                     config.epsilon);
    add(comparison, expected, got.narrow(0, begin, count));
  }
  return comparison.finish();
}

ComparisonResult verify_dgamma(const at::Tensor& output, const Case& problem,
                               const CaseInputs& inputs, const Config& config) {
  reference::Expected total;
  for (const auto& [begin, count] : slices(problem.rows, problem.cols)) {
    const reference::Expected part = reference::expected_dgamma(
        inputs.x().narrow(0, begin, count), inputs.dy().narrow(0, begin, count), config.epsilon);
    total.want = total.want.defined() ? total.want + part.want : part.want;
    total.magnitude = total.magnitude.defined() ? total.magnitude + part.magnitude : part.magnitude;
  }
  Comparison comparison(bounds_for(Operation::gamma, problem, config), problem.cols);
  add(comparison, total, output.detach());
  return comparison.finish();
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.detach().contiguous().view(at::kByte);
}

}  // namespace

ComparisonResult verify(const Outputs& outputs, const Case& problem, const CaseInputs& inputs,
                        const Config& config) {
  const c10::NoGradGuard no_grad;
  ComparisonResult worst;
  worst.reason = "the call gave nothing to compare";
  bool first = true;
  const auto take = [&](const char* what, ComparisonResult result) {
    if (result.state != State::passed) result.reason = std::string(what) + ": " + result.reason;
    if (first || worse(result.state, worst.state) != worst.state) worst = std::move(result);
    first = false;
  };
  if (outputs.y.defined()) {
    take("y", verify_rows(Operation::forward, outputs.y, problem, inputs, config));
  }
  if (outputs.dx.defined()) {
    take("dx", verify_rows(Operation::backward, outputs.dx, problem, inputs, config));
  }
  if (outputs.dgamma.defined()) {
    take("dgamma", verify_dgamma(outputs.dgamma, problem, inputs, config));
  }
  return worst;
}

std::string copy_mistake(const Outputs& outputs, const CaseInputs& inputs) {
  const at::Tensor x = inputs.x(), dy = inputs.dy();
  for (const auto& [begin, count] : looked_at(x.size(0), x.size(1))) {
    const at::Tensor x_bytes = bytes_of(x.narrow(0, begin, count));
    if (outputs.y.defined() && !at::equal(bytes_of(outputs.y.narrow(0, begin, count)), x_bytes)) {
      return "the copy's result is not a copy of x";
    }
    if (!outputs.dx.defined()) continue;
    const at::Tensor want = at::bitwise_xor(x_bytes, bytes_of(dy.narrow(0, begin, count)));
    if (!at::equal(bytes_of(outputs.dx.narrow(0, begin, count)), want)) {
      return "the copy's result does not combine x and dy";
    }
  }
  return {};
}

}  // namespace rmsnorm::bench
