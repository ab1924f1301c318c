#include "check/planted.hpp"

#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "operator/kernels.hpp"

namespace rmsnorm::test {
namespace {

using Forward = rmsnorm_forward_args;
using Backward = rmsnorm_backward_args;

const rmsnorm_implementation& right() {
  return *find_kernels("rowwise", RMSNORM_CPU);
}

float* floats(void* data) {
  return static_cast<float*>(data);
}
const float* floats(const void* data) {
  return static_cast<const float*>(data);
}

std::int64_t last(const auto& args) {
  return args.rows * args.cols - 1;
}

/// A forward that divides the sum of squares by something else than cols.
std::int32_t forward_dividing_by(const Forward* args, std::int64_t denominator) {
  const float *x = floats(args->x.data), *gamma = floats(args->gamma);
  for (std::int64_t m = 0; m < args->rows; ++m) {
    double sum = 0;
    for (std::int64_t c = 0; c < args->cols; ++c) {
      const double value = x[m * args->cols + c];
      sum += value * value;
    }
    const double rstd = 1 / std::sqrt(sum / static_cast<double>(denominator) + args->eps);
    floats(args->rstd)[m] = static_cast<float>(rstd);
    for (std::int64_t c = 0; c < args->cols; ++c) {
      floats(args->y)[m * args->cols + c] =
          static_cast<float>(x[m * args->cols + c] * rstd * gamma[c]);
    }
  }
  return RMSNORM_OK;
}

using ForwardFunction = std::int32_t (*)(const Forward*);
using BackwardFunction = std::int32_t (*)(const Backward*);

rmsnorm_implementation with(ForwardFunction forward) {
  rmsnorm_implementation table = right();
  table.forward = forward;
  return table;
}
rmsnorm_implementation with(BackwardFunction backward) {
  rmsnorm_implementation table = right();
  table.backward = backward;
  return table;
}

rmsnorm_implementation refusing() {
  rmsnorm_implementation table = right();
  table.forward_refusal = [](const Forward*) { return "takes no rows on Sundays"; };
  return table;
}
rmsnorm_implementation refusing_backward() {
  rmsnorm_implementation table = right();
  table.backward_refusal = [](const Backward*) { return "has no backward"; };
  return table;
}
rmsnorm_implementation failing() {
  rmsnorm_implementation table = right();
  table.forward = [](const Forward*) -> std::int32_t { return 719; };
  table.error_text = [](std::int32_t) { return "unspecified launch failure"; };
  return table;
}
/// Asks for less scratch than it writes.
rmsnorm_implementation stingy() {
  rmsnorm_implementation table = right();
  table.backward_workspace_bytes = [](const Backward* args) {
    return right().backward_workspace_bytes(args) - sizeof(float);
  };
  table.backward = [](const Backward* args) -> std::int32_t {
    Backward claimed = *args;
    claimed.workspace_bytes += sizeof(float);
    return right().backward(&claimed);
  };
  return table;
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace

std::vector<Planted> planted_faults() {
  constexpr State ok = State::passed, bad = State::failed, error = State::error;
  std::vector<Planted> faults;
  const auto add = [&](const char* name, const rmsnorm_implementation& table, State forward,
                       State backward, State gamma) {
    faults.push_back({name, table, forward, backward, gamma});
  };
  // A wrong rstd that y was made with is in every gradient too.
  add("denominator of the block", with([](const Forward* args) {
        const auto width = std::bit_ceil(static_cast<std::uint64_t>(args->cols));
        return forward_dividing_by(args, static_cast<std::int64_t>(width));
      }),
      bad, bad, bad);
  add("denominator N-1",
      with([](const Forward* args) { return forward_dividing_by(args, args->cols - 1); }), bad, bad,
      bad);
  add("y has a NaN", with([](const Forward* args) {
        const auto status = right().forward(args);
        floats(args->y)[last(*args)] = kNan;
        return status;
      }),
      bad, ok, ok);
  add("y has an unwritten element", with([](const Forward* args) {
        const float before = floats(args->y)[last(*args)];
        const auto status = right().forward(args);
        floats(args->y)[last(*args)] = before;
        return status;
      }),
      bad, ok, ok);
  add("rstd is off by a thousandth", with([](const Forward* args) {
        const auto status = right().forward(args);
        for (std::int64_t m = 0; m < args->rows; ++m) floats(args->rstd)[m] *= 1.001F;
        return status;
      }),
      bad, bad, bad);
  add("rstd is not written", with([](const Forward* args) {
        Forward without = *args;
        without.rstd = nullptr;
        return right().forward(&without);
      }),
      bad, bad, bad);
  add("y is written past its end", with([](const Forward* args) {
        const auto status = right().forward(args);
        floats(args->y)[last(*args) + 1] = 0;
        return status;
      }),
      bad, bad, bad);
  add("y is written before its start", with([](const Forward* args) {
        const auto status = right().forward(args);
        floats(args->y)[-1] = 0;
        return status;
      }),
      bad, bad, bad);
  add("x is changed afterwards", with([](const Backward* args) {
        const auto status = right().backward(args);
        const_cast<float*>(floats(args->x.data))[0] *= -1;
        return status;
      }),
      ok, bad, bad);
  add("no projection term", with([](const Backward* args) {
        const auto status = right().backward(args);
        const float *dy = floats(args->dy.data), *gamma = floats(args->gamma);
        for (std::int64_t i = 0; i <= last(*args); ++i) {
          floats(args->dx)[i] = floats(args->rstd)[i / args->cols] * dy[i] * gamma[i % args->cols];
        }
        return status;
      }),
      ok, bad, ok);
  add("dx has a NaN", with([](const Backward* args) {
        const auto status = right().backward(args);
        floats(args->dx)[0] = kNan;
        return status;
      }),
      ok, bad, ok);
  add("dx has an unwritten element", with([](const Backward* args) {
        const float before = floats(args->dx)[last(*args)];
        const auto status = right().backward(args);
        floats(args->dx)[last(*args)] = before;
        return status;
      }),
      ok, bad, ok);
  add("dgamma is an average", with([](const Backward* args) {
        const auto status = right().backward(args);
        for (std::int64_t c = 0; c < args->cols; ++c) {
          floats(args->dgamma)[c] /= static_cast<float>(args->rows);
        }
        return status;
      }),
      ok, ok, bad);
  add("dgamma misses the last row", with([](const Backward* args) {
        const auto status = right().backward(args);
        const std::int64_t begin = (args->rows - 1) * args->cols;
        for (std::int64_t c = 0; c < args->cols; ++c) {
          floats(args->dgamma)[c] -= floats(args->dy.data)[begin + c] *
                                     floats(args->x.data)[begin + c] *
                                     floats(args->rstd)[args->rows - 1];
        }
        return status;
      }),
      ok, ok, bad);
  add("dgamma differs from call to call", with([](const Backward* args) {
        static int calls = 0;
        const auto status = right().backward(args);
        float& first = floats(args->dgamma)[0];
        if (++calls % 2 == 0) first = std::nextafter(first, 1e30F);
        return status;
      }),
      ok, ok, bad);
  add("dgamma is written past its end", with([](const Backward* args) {
        const auto status = right().backward(args);
        floats(args->dgamma)[args->cols] = 1;
        return status;
      }),
      ok, bad, bad);
  add("more scratch is written than was asked for", stingy(), ok, bad, bad);
  add("all is refused", refusing(), State::unimplemented, State::unimplemented,
      State::unimplemented);
  add("the backward is refused", refusing_backward(), ok, State::unimplemented,
      State::unimplemented);
  add("the launch fails", failing(), error, error, error);
  add("an exception crosses the seam",
      with([](const Backward*) -> std::int32_t { throw std::runtime_error("out of luck"); }), ok,
      error, error);
  return faults;
}

Config check_config() {
  Config config;
  config.tolerance[Dtype::float64] = {.atol = 1e-12, .rtol = 1e-12};
  config.tolerance[Dtype::float32] = {.atol = 1e-5, .rtol = 1e-4};
  config.tolerance[Dtype::float16] = {.atol = 3e-3, .rtol = 3e-3};
  config.tolerance[Dtype::bfloat16] = {.atol = 2e-2, .rtol = 2e-2};
  return config;
}

ComparisonResult check(const rmsnorm_implementation& table, Operation operation,
                       const Case& problem) {
  InProcessRunner runner({"subject", &table, nullptr});
  return check_case(operation, problem, runner, check_config(), c10::Device(c10::kCPU));
}

}  // namespace rmsnorm::test
