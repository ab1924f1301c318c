#include "check/inputs.hpp"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>
#include <limits>

#include "operator/tensors.hpp"

namespace rmsnorm {
namespace {

constexpr std::int64_t kDrawOnCpuElements = std::int64_t{1} << 24;
constexpr std::int64_t kSliceElements = std::int64_t{1} << 24;  // drawn at a time, in float32
constexpr std::int64_t kGammaZeroEvery = 7;
constexpr std::int64_t kStridePadding = 24;  // elements between rows of the strided layouts
constexpr std::int64_t kQkvParts = 3;
constexpr std::int64_t kSpecialRows = 6;  // kinds of rows of InputKind::special

Dtype dtype_of_gamma(const Case& problem) {
  return problem.gamma == GammaKind::float32 ? Dtype::float32 : problem.dtype;
}

/// Heads that a heads layout splits the rows into.
std::int64_t heads_of(std::int64_t rows) {
  for (const std::int64_t heads : {8, 4, 3, 2}) {
    if (rows % heads == 0) return heads;
  }
  return 1;
}

at::Generator seeded_generator(const at::Device& device, std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  return generator;
}

/// Turns z [rows, cols], rows `first`, ... of the case, into the rows of InputKind::special.
void make_special(at::Tensor& z, std::int64_t first) {
  constexpr double kSmall = 1e-3;      // mean(x^2) is about the usual eps
  constexpr double kNearLimit = 8192;  // 8 standard deviations stay in float16, 1/50 squares not
  constexpr double kMean = 3;
  const auto rows_of_kind = [&](std::int64_t kind) {
    const std::int64_t begin = (kind - first % kSpecialRows + kSpecialRows) % kSpecialRows;
    return z.slice(0, std::min(begin, z.size(0)), c10::nullopt, kSpecialRows);
  };
  rows_of_kind(1).zero_();
  rows_of_kind(2).mul_(kSmall);
  rows_of_kind(3).narrow(1, 0, z.size(1) - 1).zero_();
  rows_of_kind(4).mul_(kNearLimit);
  rows_of_kind(5).add_(kMean);
}

/// Where a layout puts x or dy.
struct Placement {
  rmsnorm_rows address;  // its data still missing
  std::int64_t outer_rows, elements, misalignment;
};

Placement placement_of(const Case& problem, bool is_dy) {
  const std::int64_t rows = problem.rows, cols = problem.cols, bytes = size_bytes(problem.dtype);
  rmsnorm_rows address{.inner_rows = std::max<std::int64_t>(rows, 1),
                       .inner_stride = cols,
                       .outer_stride = 0,
                       .dtype = static_cast<std::int32_t>(problem.dtype)};
  std::int64_t misalignment = 0;
  switch (problem.layout) {
    case Layout::contiguous:
      break;
    case Layout::offset:
      misalignment = bytes;
      break;
    case Layout::row_strided:
      // Another stride for dy, so that one cannot pass for the other.
      address.inner_stride = cols + (is_dy ? 2 : 1) * kStridePadding;
      break;
    case Layout::heads:
      address.inner_rows = heads_of(rows);
      address.outer_stride = (kQkvParts + (is_dy ? 1 : 0)) * address.inner_rows * cols;
      break;
    case Layout::expanded_dy:
      address.inner_stride = is_dy ? 0 : cols;
      break;
  }
  if (address.outer_stride == 0) address.outer_stride = address.inner_rows * address.inner_stride;
  const std::int64_t outer_rows = rows / address.inner_rows;
  const std::int64_t last = (outer_rows - 1) * address.outer_stride +
                            (address.inner_rows - 1) * address.inner_stride + cols;
  // Of an expanded dy there is one row, but NaN up to where a dense one would end: who reads it as
  // dense reads those, not foreign memory.
  const std::int64_t elements = problem.layout == Layout::expanded_dy && is_dy ? rows * cols : last;
  return {address, outer_rows, elements, misalignment};
}

}  // namespace

CaseInputs::Placed CaseInputs::place(const Case& problem, bool is_dy, const at::Device& device) {
  const Placement placement = placement_of(problem, is_dy);
  GuardedBuffer buffer(placement.elements * size_bytes(problem.dtype), device,
                       placement.misalignment);
  rmsnorm_rows address = placement.address;
  address.data = buffer.data();
  at::Tensor view =
      buffer.view(problem.dtype, {placement.outer_rows, address.inner_rows, problem.cols},
                  {address.outer_stride, address.inner_stride, 1});
  return {std::move(buffer), view, address};
}

std::int64_t CaseInputs::bytes(const Case& problem) {
  const std::int64_t elements = problem.rows * problem.cols;
  // x() and dy() of rows in two levels are copies beside the ones that damage() compares with.
  const std::int64_t copies = problem.layout == Layout::heads         ? 4 * elements
                              : problem.layout == Layout::expanded_dy ? elements + problem.cols
                                                                      : 2 * elements;
  return (placement_of(problem, false).elements + placement_of(problem, true).elements + copies) *
         size_bytes(problem.dtype);
}

CaseInputs::CaseInputs(const Case& problem, std::uint64_t seed, const at::Device& device)
    : gamma_dtype_(dtype_of_gamma(problem)),
      x_placed_(place(problem, false, device)),
      dy_placed_(place(problem, true, device)),
      gamma_buffer_(problem.cols * size_bytes(gamma_dtype_), device,
                    problem.layout == Layout::offset ? size_bytes(gamma_dtype_) : 0) {
  if (problem.gamma != GammaKind::none) gamma_ = gamma_buffer_.view(gamma_dtype_, {problem.cols});
  draw(problem, seed);
  x_ = x_placed_.rows.flatten(0, 1);
  dy_ = dy_placed_.rows.flatten(0, 1);
  x_copy_ = x_placed_.rows.clone(at::MemoryFormat::Contiguous);
  // An expanded dy is one row: a copy of all its repetitions would only cost memory.
  dy_copy_ = dy_placed_.rows
                 .narrow(1, 0, problem.layout == Layout::expanded_dy ? 1 : dy_placed_.rows.size(1))
                 .clone(at::MemoryFormat::Contiguous);
  if (gamma_.defined()) gamma_copy_ = gamma_.clone();
}

void CaseInputs::draw(const Case& problem, std::uint64_t seed) {
  const std::int64_t rows = problem.rows, cols = problem.cols;
  const at::Device target = x_placed_.rows.device();
  const at::Device device = rows * cols <= kDrawOnCpuElements ? at::Device(at::kCPU) : target;
  at::Generator generator = seeded_generator(device, seed);
  const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat).device(device);

  if (gamma_.defined()) {
    at::Tensor values = at::randn({cols}, generator, options);
    if (cols > kGammaZeroEvery)
      values.slice(0, kGammaZeroEvery, c10::nullopt, kGammaZeroEvery).zero_();
    gamma_.copy_(values);
  }
  const std::int64_t inner = x_placed_.address.inner_rows;
  const std::int64_t slice = std::max<std::int64_t>(1, kSliceElements / cols);
  const bool expanded = problem.layout == Layout::expanded_dy;
  for (std::int64_t outer = 0; outer < rows / inner; ++outer) {
    for (std::int64_t begin = 0; begin < inner; begin += slice) {
      const std::int64_t count = std::min(slice, inner - begin);
      const at::Tensor z = at::randn({count, cols}, generator, options);
      at::Tensor x = z;
      if (problem.inputs == InputKind::scaled) {
        // Log-uniform from 1e-3, where eps matters, to 1e3.
        x = z * at::pow(10.0, at::rand({count, 1}, generator, options) * 6 - 3);
      } else if (problem.inputs == InputKind::special) {
        x = z.clone();
        make_special(x, outer * inner + begin);
      }
      x_placed_.rows[outer].narrow(0, begin, count).copy_(x);
      const std::int64_t dy_count = !expanded ? count : outer == 0 && begin == 0 ? 1 : 0;
      if (dy_count == 0) continue;
      const at::Tensor noise = at::randn({dy_count, cols}, generator, options);
      dy_placed_.rows[outer]
          .narrow(0, begin, dy_count)
          .copy_(0.5 * z.narrow(0, 0, dy_count) + noise);
    }
  }
}

void CaseInputs::describe(rmsnorm_forward_args& args) const {
  args.rows = x_.size(0);
  args.cols = x_.size(1);
  args.x = x_placed_.address;
  args.gamma = gamma_.defined() ? gamma_.const_data_ptr() : nullptr;
  args.gamma_dtype = gamma_.defined() ? static_cast<std::int32_t>(gamma_dtype_) : RMSNORM_NO_DTYPE;
}

void CaseInputs::describe(rmsnorm_backward_args& args) const {
  args.rows = x_.size(0);
  args.cols = x_.size(1);
  args.x = x_placed_.address;
  args.dy = dy_placed_.address;
  args.gamma = gamma_.defined() ? gamma_.const_data_ptr() : nullptr;
  args.gamma_dtype = gamma_.defined() ? static_cast<std::int32_t>(gamma_dtype_) : RMSNORM_NO_DTYPE;
}

void CaseInputs::spoil(std::int64_t row, std::int64_t col) {
  const std::int64_t inner = x_placed_.address.inner_rows;
  x_placed_.rows[row / inner][row % inner][col].fill_(std::numeric_limits<double>::quiet_NaN());
}

void CaseInputs::mend() {
  x_placed_.rows.copy_(x_copy_);
}

std::string CaseInputs::damage() const {
  if (!same_bits(x_placed_.rows, x_copy_)) return "x was changed by the call";
  if (!same_bits(dy_placed_.rows.narrow(1, 0, dy_copy_.size(1)), dy_copy_))
    return "dy was changed by the call";
  if (gamma_.defined() && !same_bits(gamma_, gamma_copy_)) return "gamma was changed by the call";
  for (const auto& [name, buffer] :
       {std::pair{"x", &x_placed_.buffer}, {"dy", &dy_placed_.buffer}, {"gamma", &gamma_buffer_}}) {
    if (const std::string damage = buffer->damage(); !damage.empty())
      return std::string(name) + ": " + damage;
  }
  return {};
}

}  // namespace rmsnorm
