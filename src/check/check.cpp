#include "check/check.hpp"

#include <ATen/ATen.h>

#include "check/buffers.hpp"
#include "check/inputs.hpp"
#include "core/files.hpp"
#include "operator/kernels.hpp"
#include "operator/streams.hpp"
#include "operator/tensors.hpp"
#include "reference/reference.hpp"

namespace rmsnorm {
namespace {

constexpr std::int64_t kSliceElements = std::int64_t{1} << 23;  // judged at a time, in float64

/// The inputs, outputs and workspaces of one case, and the calls on them.
class Trial {
 public:
  Trial(Operation operation, const Case& problem, Runner& runner, const Config& config,
        const at::Device& device)
      : operation_(operation),
        problem_(problem),
        runner_(runner),
        eps_(config.epsilon),
        device_(device),
        inputs_(problem, case_seed(config.seed, problem.name()), device),
        wide_(accumulation_dtype(problem.dtype)),
        gamma_dtype_(problem.gamma == GammaKind::float32 ? Dtype::float32 : problem.dtype),
        y_(elements() * size_bytes(problem.dtype), device),
        rstd_(problem.rows * size_bytes(wide_), device),
        dx_(operation == Operation::forward ? 0 : elements() * size_bytes(problem.dtype), device),
        dgamma_(operation == Operation::forward ? 0 : problem.cols * size_bytes(gamma_dtype_),
                device),
        workspace_(0, device) {}

  /// One forward and, if the operation needs it, one backward, on poisoned outputs.
  Outcome run() {
    for (GuardedBuffer* buffer : {&y_, &rstd_, &dx_, &dgamma_}) buffer->poison();
    rmsnorm_forward_args forward{};
    inputs_.describe(forward);
    forward.y = y_.data();
    forward.rstd = rstd_.data();
    prepare(forward);
    const Outcome outcome = runner_.run(forward);
    if (outcome.kind != Outcome::Kind::done || operation_ == Operation::forward) return outcome;

    rmsnorm_backward_args backward{};
    inputs_.describe(backward);
    backward.rstd = rstd_.data();
    backward.dx = dx_.data();
    backward.dgamma = inputs_.gamma().defined() ? dgamma_.data() : nullptr;
    prepare(backward);
    return runner_.run(backward);
  }

  /// The result that the operation is about.
  at::Tensor result() const {
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

  /// Judges the result against the oracle, a slice of rows at a time.
  ComparisonResult compare(const Bounds& bounds) const {
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
      add(comparison, expected, got.narrow(0, begin, count));
    });
    return comparison.finish();
  }

  /// Judges the saved statistic: to the accuracy of its own dtype.
  ComparisonResult compare_rstd() const {
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

  std::string damage() const {
    const std::pair<const char*, const GuardedBuffer*> buffers[] = {{"y", &y_},
                                                                    {"rstd", &rstd_},
                                                                    {"dx", &dx_},
                                                                    {"dgamma", &dgamma_},
                                                                    {"workspace", &workspace_}};
    for (const auto& [name, buffer] : buffers) {
      if (const std::string damage = buffer->damage(); !damage.empty())
        return std::string(name) + ": " + damage;
    }
    return inputs_.damage();
  }

 private:
  std::int64_t elements() const { return problem_.rows * problem_.cols; }

  template <class Args>
  void prepare(Args& args) {
    args.eps = eps_;
    args.stream = current_stream(device_);
    args.executor = device_.is_cpu() ? &cpu_executor() : nullptr;
    args.workspace_bytes = runner_.workspace_bytes(args);
    workspace_ = GuardedBuffer(static_cast<std::int64_t>(args.workspace_bytes), device_);
    args.workspace = workspace_.data();
  }

  template <class Body>
  void for_each_slice(Body body) const {
    const std::int64_t slice = std::max<std::int64_t>(1, kSliceElements / problem_.cols);
    for (std::int64_t begin = 0; begin < problem_.rows; begin += slice) {
      body(begin, std::min(slice, problem_.rows - begin));
    }
  }

  reference::Expected expected_dgamma() const {
    reference::Expected total;
    for_each_slice([&](std::int64_t begin, std::int64_t count) {
      const reference::Expected part = reference::expected_dgamma(
          inputs_.x().narrow(0, begin, count), inputs_.dy().narrow(0, begin, count), eps_);
      total.want = total.want.defined() ? total.want + part.want : part.want;
      total.magnitude =
          total.magnitude.defined() ? total.magnitude + part.magnitude : part.magnitude;
    });
    return total;
  }

  static void add(Comparison& comparison, const reference::Expected& expected,
                  const at::Tensor& got) {
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

  Operation operation_;
  Case problem_;
  Runner& runner_;
  double eps_;
  at::Device device_;
  CaseInputs inputs_;
  Dtype wide_, gamma_dtype_;
  GuardedBuffer y_, rstd_, dx_, dgamma_, workspace_;
};

void worsen(ComparisonResult& result, State state, const std::string& reason) {
  result.reason = result.state == State::passed ? reason : result.reason + "; " + reason;
  result.state = worse(result.state, state);
}

ComparisonResult judged(State state, const std::string& reason) {
  ComparisonResult result;
  result.state = state;
  result.reason = reason;
  return result;
}

ComparisonResult check_case_or_throw(Operation operation, const Case& problem, Runner& runner,
                                     const Config& config, const at::Device& device) {
  if (operation == Operation::gamma && problem.gamma == GammaKind::none) {
    return judged(State::skipped, "the case has no gamma, so there is no dgamma");
  }
  Trial trial(operation, problem, runner, config, device);
  const Outcome outcome = trial.run();
  if (outcome.kind == Outcome::Kind::refused) return judged(State::unimplemented, outcome.reason);
  if (outcome.kind == Outcome::Kind::error) return judged(State::error, outcome.reason);

  ComparisonResult result = trial.compare(bounds_for(operation, problem, config));
  if (operation == Operation::forward) {
    const ComparisonResult rstd = trial.compare_rstd();
    if (rstd.state != State::passed) worsen(result, rstd.state, "rstd: " + rstd.reason);
  }
  if (const std::string damage = trial.damage(); !damage.empty())
    worsen(result, State::failed, damage);

  const at::Tensor first = trial.result().clone();
  const Outcome again = trial.run();
  if (again.kind != Outcome::Kind::done) {
    worsen(result, State::error, "the second call with the same inputs: " + again.reason);
  } else if (!at::equal(first.view(at::kByte), trial.result().view(at::kByte))) {
    worsen(result, State::failed, "a second call with the same inputs gave other bits");
  }
  return result;
}

}  // namespace

std::string_view command_name(Operation operation) {
  switch (operation) {
    case Operation::forward:
      return "check-forward";
    case Operation::backward:
      return "check-backward";
    case Operation::gamma:
      break;
  }
  return "check-gamma";
}

Bounds bounds_for(Operation operation, const Case& problem, const Config& config) {
  Bounds bounds;
  const bool gamma = operation == Operation::gamma;
  bounds.dtype = gamma && problem.gamma == GammaKind::float32 ? Dtype::float32 : problem.dtype;
  bounds.elementwise = config.tolerance.at(problem.dtype);
  bounds.scale_atol_by_row = problem.inputs == InputKind::scaled;
  bounds.terms = gamma ? problem.rows + problem.cols
                       : problem.cols;  // dgamma's addends hold a rstd of cols terms
  return bounds;
}

ComparisonResult check_case(Operation operation, const Case& problem, Runner& runner,
                            const Config& config, const at::Device& device) {
  try {
    return check_case_or_throw(operation, problem, runner, config, device);
  } catch (const std::exception& error) {
    return judged(State::error, first_line(error.what()));
  }
}

std::vector<std::string> hints(Operation operation, const std::vector<CaseState>& results) {
  bool any_failed = false, power_failed = false, other_failed = false, all_errors = true;
  for (const CaseState& result : results) {
    if (result.state < State::failed) continue;
    any_failed = true;
    all_errors = all_errors && result.state == State::error;
    const std::int64_t cols = result.problem.cols;
    ((cols & (cols - 1)) == 0 ? power_failed : other_failed) = true;
  }
  if (!any_failed || all_errors) return {};
  switch (operation) {
    case Operation::forward:
      if (other_failed && !power_failed) {
        return {
            "fails at 257 columns but not at 256: look at the denominator (N, not the block's "
            "width), the column "
            "mask, the row offset row * N"};
      }
      return {
          "look at the sum of squares, eps inside the root, gamma's index, the output's rounding"};
    case Operation::backward:
      return {
          "if check-forward passes: look at the r^3 term, mean(u*x) over the N columns, the saved "
          "rstd"};
    case Operation::gamma:
      return {
          "if only dgamma fails: look at the partial products, the second pass, its scratch, a sum "
          "over rows and "
          "not an average"};
  }
  return {};
}

}  // namespace rmsnorm
