#include "check/trial.hpp"

#include <ATen/ATen.h>

#include "check/measure.hpp"
#include "operator/kernels.hpp"
#include "operator/streams.hpp"
#include "operator/tensors.hpp"

namespace rmsnorm {
namespace {

constexpr std::int64_t kSliceElements = std::int64_t{1} << 23;  // judged at a time, in float64
constexpr std::int64_t kSliceTensors = 32;                      // of 8 bytes an element, at once
// Cases above this are measured where they lie (measure.hpp): all others need no second path.
constexpr std::int64_t kMeasureInPlaceElements = std::int64_t{1} << 24;

void add(Comparison& comparison, const reference::Expected& expected, const at::Tensor& got) {
  const auto values = [](const at::Tensor& tensor) {
    return tensor.to(at::kDouble).cpu().contiguous();
  };
  const at::Tensor want = values(expected.want), magnitude = values(expected.magnitude),
                   result = values(got);
  const auto span = [](const at::Tensor& tensor) {
    return std::span<const double>(tensor.const_data_ptr<double>(),
                                   static_cast<std::size_t>(tensor.numel()));
  };
  comparison.add(span(want), span(magnitude), span(result));
}

}  // namespace

void worsen(ComparisonResult& result, State state, const std::string& reason) {
  result.reason = result.state == State::passed ? reason : result.reason + "; " + reason;
  result.state = worse(result.state, state);
}

Trial::Trial(Operation operation, const Case& problem, Runner& runner, const Config& config,
             const at::Device& device)
    : operation_(operation),
      problem_(problem),
      runner_(runner),
      eps_(config.epsilon),
      device_(device),
      inputs_((require_memory(bytes(operation, problem), device), problem),
              case_seed(config.seed, problem.name()), device),
      wide_(accumulation_dtype(problem.dtype)),
      gamma_dtype_(problem.gamma == GammaKind::float32 ? Dtype::float32 : problem.dtype),
      y_(elements() * size_bytes(problem.dtype), device),
      rstd_(problem.rows * size_bytes(wide_), device),
      dx_(operation == Operation::forward ? 0 : elements() * size_bytes(problem.dtype), device),
      dgamma_(operation == Operation::forward ? 0 : problem.cols * size_bytes(gamma_dtype_),
              device),
      workspace_(0, device) {}

std::int64_t Trial::bytes(Operation operation, const Case& problem) {
  const std::int64_t rows = problem.rows, cols = problem.cols;
  const std::int64_t result_bytes = rows * cols * size_bytes(problem.dtype);
  // y; for a backward dx too; and the first result beside the second.
  const std::int64_t results = operation == Operation::backward ? 3 : 2;
  const std::int64_t slice = std::min(rows * cols, std::max(kSliceElements, cols));
  return CaseInputs::bytes(problem) + results * result_bytes + rows * 8 + kSliceTensors * 8 * slice;
}

template <class Args>
void Trial::prepare(Args& args) {
  args.eps = eps_;
  args.stream = current_stream(device_);
  args.executor = device_.is_cpu() ? &cpu_executor() : nullptr;
  args.workspace_bytes = runner_.workspace_bytes(args);
  workspace_ = GuardedBuffer(0, device_);  // the last call's goes first
  require_memory(static_cast<std::int64_t>(args.workspace_bytes), device_);
  workspace_ = GuardedBuffer(static_cast<std::int64_t>(args.workspace_bytes), device_);
  args.workspace = workspace_.data();
}

template <class Body>
void Trial::for_each_slice(Body body) const {
  const std::int64_t slice = std::max<std::int64_t>(1, kSliceElements / problem_.cols);
  for (std::int64_t begin = 0; begin < problem_.rows; begin += slice) {
    body(begin, std::min(slice, problem_.rows - begin));
  }
}

void Trial::poison_outputs() {
  for (GuardedBuffer* buffer : {&y_, &rstd_, &dx_, &dgamma_}) buffer->poison();
}

Outcome Trial::run_forward(std::int64_t rows) {
  rmsnorm_forward_args args{};
  inputs_.describe(args);
  args.rows = rows;
  args.y = y_.data();
  args.rstd = rstd_.data();
  prepare(args);
  return runner_.run(args);
}

Outcome Trial::run(Wanted wanted) {
  poison_outputs();
  const Outcome outcome = run_forward(problem_.rows);
  if (outcome.kind != Outcome::Kind::done || operation_ == Operation::forward) return outcome;

  rmsnorm_backward_args args{};
  inputs_.describe(args);
  args.rstd = rstd_.data();
  args.dx = wanted.dx ? dx_.data() : nullptr;
  args.dgamma = wanted.dgamma && inputs_.gamma().defined() ? dgamma_.data() : nullptr;
  prepare(args);
  return runner_.run(args);
}

Outcome Trial::run_first_row() {
  poison_outputs();
  return run_forward(1);
}

at::Tensor Trial::result() const {
  switch (operation_) {
    case Operation::forward:
      return y_.view(problem_.dtype, {problem_.rows, problem_.cols});
    case Operation::backward:
      return dx_.view(problem_.dtype, {problem_.rows, problem_.cols});
    case Operation::gamma:
      break;
  }
  return dgamma_.view(gamma_dtype_, {1, problem_.cols});
}

ComparisonResult Trial::compare(const Bounds& bounds) const {
  Comparison comparison(bounds, problem_.cols);
  const at::Tensor got = result();
  if (operation_ == Operation::gamma) {
    add(comparison, expected_dgamma(), got);
    return comparison.finish();
  }
  for_each_slice([&](std::int64_t begin, std::int64_t count) {
    const at::Tensor x = inputs_.x().narrow(0, begin, count);
    const reference::Expected expected =
        operation_ == Operation::forward
            ? reference::expected_y(x, inputs_.gamma(), eps_)
            : reference::expected_dx(x, inputs_.gamma(), inputs_.dy().narrow(0, begin, count),
                                     eps_);
    const at::Tensor part = got.narrow(0, begin, count);
    if (!device_.is_cpu() && elements() > kMeasureInPlaceElements &&
        add_measured(comparison, expected, part)) {
      return;
    }
    add(comparison, expected, part);
  });
  return comparison.finish();
}

ComparisonResult Trial::compare_rstd() const {
  Bounds bounds;
  bounds.dtype = wide_;
  bounds.terms = problem_.cols;
  bounds.elementwise = {.atol = 0,
                        .rtol = unit_roundoff(wide_) + accumulation_bound(wide_, problem_.cols)};
  Comparison comparison(bounds, 1);
  const at::Tensor got = rstd_.view(wide_, {problem_.rows});
  for_each_slice([&](std::int64_t begin, std::int64_t count) {
    add(comparison, reference::expected_rstd(inputs_.x().narrow(0, begin, count), eps_),
        got.narrow(0, begin, count));
  });
  return comparison.finish();
}

std::string Trial::damage() const {
  const std::pair<const char*, const GuardedBuffer*> buffers[] = {
      {"y", &y_}, {"rstd", &rstd_}, {"dx", &dx_}, {"dgamma", &dgamma_}, {"workspace", &workspace_}};
  for (const auto& [name, buffer] : buffers) {
    if (const std::string damage = buffer->damage(); !damage.empty())
      return std::string(name) + ": " + damage;
  }
  return inputs_.damage();
}

reference::Expected Trial::expected_dgamma() const {
  reference::Expected total;
  for_each_slice([&](std::int64_t begin, std::int64_t count) {
    const reference::Expected part = reference::expected_dgamma(
        inputs_.x().narrow(0, begin, count), inputs_.dy().narrow(0, begin, count), eps_);
    total.want = total.want.defined() ? total.want + part.want : part.want;
    total.magnitude = total.magnitude.defined() ? total.magnitude + part.magnitude : part.magnitude;
  });
  return total;
}

}  // namespace rmsnorm
