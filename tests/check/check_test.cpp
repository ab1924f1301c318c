#include "check/check.hpp"

#include <algorithm>
#include "check/planted.hpp"

#include "operator/kernels.hpp"
#include "reference/tensor_tables.hpp"
#include "support/catch.hpp"

namespace rmsnorm::test {
namespace {

constexpr Operation kOperations[] = {Operation::forward, Operation::backward, Operation::gamma};

std::string state_of(const rmsnorm_implementation& table, Operation operation, const Case& problem,
                     std::string& reason) {
  const ComparisonResult result = check(table, operation, problem);
  reason = result.reason;
  return std::string(name(result.state));
}

TEST_CASE("Each planted fault is caught by the checks it concerns and by no other", "[planted]") {
  for (const Planted& fault : planted_faults()) {
    for (const Case& problem : {Case{17, 257}, Case{3, 31}, Case{128, 1000}}) {
      for (const Operation operation : kOperations) {
        const State want = operation == Operation::forward    ? fault.forward
                           : operation == Operation::backward ? fault.backward
                                                              : fault.gamma;
        std::string reason;
        const std::string got = state_of(fault.table, operation, problem, reason);
        CAPTURE(fault.name, problem.name(), command_name(operation), reason);
        CHECK(got == name(want));
        CHECK(reason.empty() == (want == State::passed));
      }
    }
  }
}

TEST_CASE("The reasons name what was found", "[planted]") {
  const auto reason = [](const std::string& fault_name, Operation operation) {
    for (const Planted& fault : planted_faults()) {
      if (fault.name == fault_name) return check(fault.table, operation, Case{17, 257}).reason;
    }
    return std::string("no such fault");
  };
  const auto has = [](const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  has(reason("y is written past its end", Operation::forward), "y: 4 bytes were written behind");
  has(reason("y is written before its start", Operation::forward),
      "y: 4 bytes were written before");
  has(reason("x is changed afterwards", Operation::backward), "x was changed by the call");
  has(reason("dgamma differs from call to call", Operation::gamma), "other bits");
  has(reason("rstd is not written", Operation::forward), "rstd: ");
  has(reason("more scratch is written than was asked for", Operation::gamma), "workspace: ");
  has(reason("all is refused", Operation::forward), "takes no rows on Sundays");
  has(reason("the launch fails", Operation::forward), "719 (unspecified launch failure)");
  has(reason("an exception crosses the seam", Operation::backward), "out of luck");
}

TEST_CASE("A denominator of the block cannot be seen at 256 columns", "[planted]") {
  const Planted fault = planted_faults().front();
  REQUIRE(fault.name == "denominator of the block");
  for (const Operation operation : kOperations) {
    CHECK(check(fault.table, operation, Case{17, 256}).state == State::passed);
  }
}

TEST_CASE("A missing projection is caught where atol would hide it", "[planted]") {
  for (const Planted& fault : planted_faults()) {
    if (fault.name != "no projection term") continue;
    // Large rows make dx as small as atol; the bounds on rows still see it.
    Case scaled{17, 4096};
    scaled.inputs = InputKind::scaled;
    CHECK(check(fault.table, Operation::backward, scaled).state == State::failed);
    CHECK(check(fault.table, Operation::backward, Case{1, 4096}).state == State::failed);
    // One column: dx is all projection.
    CHECK(check(fault.table, Operation::backward, Case{3, 1}).state == State::failed);
  }
}

TEST_CASE("Right implementations pass on every layout, gamma and input", "[right]") {
  const rmsnorm_implementation* tables[] = {find_kernels("rowwise", RMSNORM_CPU),
                                            find_tensor_table("reference", RMSNORM_CPU)};
  for (const rmsnorm_implementation* table : tables) {
    for (const Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::float16, Dtype::bfloat16}) {
      for (const Layout layout : {Layout::contiguous, Layout::offset, Layout::row_strided,
                                  Layout::heads, Layout::expanded_dy}) {
        for (const GammaKind gamma : {GammaKind::same, GammaKind::float32, GammaKind::none}) {
          if (gamma == GammaKind::float32 && size_bytes(dtype) != 2) continue;
          for (const InputKind inputs : {InputKind::normal, InputKind::scaled}) {
            for (const auto& [rows, cols] : {std::pair{12, 257}, std::pair{1, 33}}) {
              const Case problem{rows, cols, dtype, layout, gamma, inputs};
              for (const Operation operation : kOperations) {
                const bool nothing = operation == Operation::gamma && gamma == GammaKind::none;
                std::string reason;
                const std::string got = state_of(*table, operation, problem, reason);
                CAPTURE(table->name, problem.name(), command_name(operation), reason);
                CHECK(got == (nothing ? "skipped" : "passed"));
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("A result that compares nothing or only zeros is not trusted", "[right]") {
  // One row of zeros in dy would do; a gamma of zeros is what a table can make of y.
  rmsnorm_implementation zeros = *find_kernels("rowwise", RMSNORM_CPU);
  zeros.forward = [](const rmsnorm_forward_args* args) -> std::int32_t {
    rmsnorm_forward_args right = *args;
    const std::int32_t status = find_kernels("rowwise", RMSNORM_CPU)->forward(&right);
    std::fill_n(static_cast<float*>(args->y), args->rows * args->cols, 0.0F);
    return status;
  };
  CHECK(check(zeros, Operation::forward, Case{3, 33}).state == State::failed);
}

TEST_CASE("Inputs depend on the seed and the case's name alone", "[right]") {
  const ComparisonResult first =
      check(*find_kernels("rowwise", RMSNORM_CPU), Operation::forward, Case{17, 257});
  static_cast<void>(check(*find_kernels("rowwise", RMSNORM_CPU), Operation::gamma, Case{3, 5}));
  const ComparisonResult again =
      check(*find_kernels("rowwise", RMSNORM_CPU), Operation::forward, Case{17, 257});
  CHECK(first.max_abs_error == again.max_abs_error);
  CHECK(first.worst_index == again.worst_index);
  CHECK(first.expected == again.expected);
  CHECK(first.compared == 17 * 257);
}

// ---- hints ----

bool any_has(const std::vector<std::string>& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

TEST_CASE("Hints say where to look, by check and by the sizes that fail", "[hints]") {
  const Case even{17, 256}, odd{17, 257};
  const std::vector<CaseState> only_odd{{even, State::passed}, {odd, State::failed}};
  const std::vector<CaseState> both{{even, State::failed}, {odd, State::failed}};
  CHECK(any_has(hints(Operation::forward, only_odd), "denominator"));
  CHECK(any_has(hints(Operation::forward, only_odd), "mask"));
  CHECK_FALSE(hints(Operation::forward, both).empty());
  CHECK_FALSE(any_has(hints(Operation::forward, both), "denominator"));
  CHECK(any_has(hints(Operation::backward, both), "r^3"));
  CHECK(any_has(hints(Operation::backward, both), "rstd"));
  CHECK(any_has(hints(Operation::gamma, both), "partial"));
  CHECK(any_has(hints(Operation::gamma, both), "average"));
}

TEST_CASE("There are no hints where nothing failed or nothing ran", "[hints]") {
  const Case problem{17, 257};
  for (const Operation operation : kOperations) {
    CHECK(hints(operation, {}).empty());
    CHECK(hints(operation, {{problem, State::passed}, {problem, State::skipped}}).empty());
    CHECK(hints(operation, {{problem, State::error}}).empty());
  }
}

}  // namespace
}  // namespace rmsnorm::test
