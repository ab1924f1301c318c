#include "check/planted.hpp"
#include "rmsnorm/errors.hpp"
#include "support/matchers.hpp"

namespace rmsnorm::test {
namespace {

ComparisonResult check_plugin(const std::string& path, Operation operation, const Case& problem) {
  InProcessRunner runner(find_subject("plugin:" + path, RMSNORM_CPU));
  return check_case(operation, problem, runner, check_config(), c10::Device(c10::kCPU));
}

TEST_CASE("A right plug-in passes all three checks", "[plugin]") {
  for (const Operation operation : {Operation::forward, Operation::backward, Operation::gamma}) {
    for (const Layout layout : {Layout::contiguous, Layout::heads, Layout::row_strided}) {
      Case problem{24, 257};
      problem.layout = layout;
      const ComparisonResult result = check_plugin(RMSNORM_TEST_PLUGIN, operation, problem);
      CAPTURE(problem.name(), result.reason);
      CHECK(result.state == State::passed);
    }
  }
  Case half{3, 33};
  half.dtype = Dtype::float16;
  CHECK(check_plugin(RMSNORM_TEST_PLUGIN, Operation::forward, half).state == State::unimplemented);
}

TEST_CASE("A wrong plug-in fails where it is wrong", "[plugin]") {
  CHECK(check_plugin(RMSNORM_TEST_PLUGIN_WRONG, Operation::forward, Case{24, 257}).state ==
        State::failed);
  CHECK(check_plugin(RMSNORM_TEST_PLUGIN_WRONG, Operation::forward, Case{24, 256}).state ==
        State::passed);
}

TEST_CASE("A plug-in that cannot be used says why", "[plugin]") {
  const auto load = [](const std::string& path, std::int32_t device = RMSNORM_CPU) {
    return find_subject("plugin:" + path, device);
  };
  CHECK_THROWS_AS(load("/no/such/plugin.so"), UnavailableError);
  CHECK_THROWS_WITH(load("/no/such/plugin.so"),
                    contains_text("plugin:/no/such/plugin.so: the shared library must load"));
  CHECK_THROWS_WITH(load(RMSNORM_TEST_PLUGIN_NO_SYMBOL),
                    contains_text("must export the function rmsnorm_plugin"));
  CHECK_THROWS_WITH(load(RMSNORM_TEST_PLUGIN_OTHER_ABI), contains_text("ABI version"));
  CHECK_THROWS_WITH(load(RMSNORM_TEST_PLUGIN, RMSNORM_CUDA), contains_text("on CUDA"));
  CHECK_THROWS_AS(load(""), UnavailableError);
}

TEST_CASE("An unknown implementation is refused with the names there are", "[plugin]") {
  CHECK_THROWS_AS(find_subject("colwise", RMSNORM_CPU), UnavailableError);
  CHECK_THROWS_WITH(find_subject("colwise", RMSNORM_CPU),
                    contains_text("rowwise, tuned, reference, aten"));
}

}  // namespace
}  // namespace rmsnorm::test
