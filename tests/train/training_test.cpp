#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "operator/kernels.hpp"
#include "support/catch.hpp"
#include "train/checkpoint_folder.hpp"
#include "train/support.hpp"

namespace rmsnorm::test {
namespace {

bool all_hold(const IntegrationResult& result) {
  const std::vector<Requirement> list = requirements(result);
  return std::all_of(list.begin(), list.end(), [](const Requirement& r) { return r.holds; });
}

std::vector<std::string> broken(const IntegrationResult& result) {
  std::vector<std::string> out;
  for (const Requirement& requirement : requirements(result))
    if (!requirement.holds) out.push_back(requirement.what);
  return out;
}

Snapshot last_of(const IntegrationResult& result, const PathResult IntegrationResult::*path) {
  return check_checkpoint((result.*path).checkpoint);
}

TEST_CASE("both paths learn the same, with exactly one kernel call each way per step",
          "[training]") {
  const std::uint64_t seed = GENERATE(1, 20240601, 99);
  CAPTURE(seed);
  const TemporaryFolder folder;
  Config config;
  config.seed = seed;
  const IntegrationResult result = train_integration(request_for(config, folder.path()));
  CAPTURE(broken(result), result.kernel.test_mse, result.mean_mse);
  CHECK(all_hold(result));
  CHECK(result.kernel.calls.forward == 100);
  CHECK(result.kernel.calls.backward == 100);
  CHECK(result.reference.calls.forward == 0);
  CHECK(result.kernel.reload_difference == 0);
  CHECK(result.initial_output_error <= 1e-6);
  CHECK(result.kernel.losses.size() == 100);
  CHECK(result.kernel.test_mse < 0.35 * result.mean_mse);
}

TEST_CASE("swapped paths fail the verdict although both train rightly", "[training]") {
  const TemporaryFolder folder;
  IntegrationRequest request = request_for(small_config(), folder.path());
  std::swap(request.reference.norm, request.kernel.norm);
  const IntegrationResult result = train_integration(request);
  const std::vector<std::string> names = broken(result);
  CAPTURE(names);
  CHECK(std::count(names.begin(), names.end(), "forward calls of the kernel path") == 1);
  CHECK(std::count(names.begin(), names.end(), "backward calls of the kernel path") == 1);
  CHECK(std::count(names.begin(), names.end(), "kernel calls of the reference path") == 1);
}

TEST_CASE("B046 a kernel path that leaves gamma alone fails the verdict", "[training]") {
  const TemporaryFolder folder;
  IntegrationRequest request = request_for(small_config(), folder.path());
  const NormFunction right = request.kernel.norm;
  request.kernel.norm = [right](const at::Tensor& x, const at::Tensor& gamma) {
    return right(x, gamma.detach()) + 0 * gamma;
  };
  const IntegrationResult result = train_integration(request);
  CHECK_FALSE(all_hold(result));
  CHECK(result.kernel.gamma_moved == 0);
  CHECK(result.initial_gradient_error > 1e-6);
}

TEST_CASE("two runs give the same bits", "[training]") {
  const TemporaryFolder one, two;
  const IntegrationResult a = train_integration(request_for(small_config(), one.path()));
  const IntegrationResult b = train_integration(request_for(small_config(), two.path()));
  CHECK(same_state(last_of(a, &IntegrationResult::kernel), last_of(b, &IntegrationResult::kernel)));
}

TEST_CASE("B086 training k steps and resuming equals training through, bit for bit", "[training]") {
  // 12 batches an epoch: within the first, at its end, in the second; 7: beside a validation point.
  const std::int64_t first = GENERATE(1, 7, 12, 13, 39, 40);
  CAPTURE(first);
  const TemporaryFolder through, halves;
  Config config = small_config();
  config.train.checkpoint_every = GENERATE(0, 5);
  const IntegrationResult want = train_integration(request_for(config, through.path()));
  IntegrationRequest request = request_for(config, halves.path());
  request.config.train.steps = first;
  train_integration(request);
  request.config.train.steps = config.train.steps;
  request.resume = true;
  const IntegrationResult got = train_integration(request);
  CHECK(got.kernel.resumed_from == first);
  CHECK(same_state(last_of(got, &IntegrationResult::kernel),
                   last_of(want, &IntegrationResult::kernel)));
  CHECK(same_state(last_of(got, &IntegrationResult::reference),
                   last_of(want, &IntegrationResult::reference)));
  CHECK(got.kernel.losses == want.kernel.losses);
  CHECK(got.kernel.test_mse == want.kernel.test_mse);
  CHECK(all_hold(got));
}

TEST_CASE("B039 weights without the optimizer's moments give another run", "[training]") {
  const TemporaryFolder folder;
  const Config config = small_config();
  const IntegrationRequest request = request_for(config, folder.path());
  TrainingRun through(config, request.kernel, request.data, "sum", request.device);
  for (int i = 0; i < 5; ++i) through.step();
  Snapshot snapshot = through.snapshot();
  TrainingRun whole(config, request.kernel, request.data, "sum", request.device);
  whole.restore("x.ckpt", snapshot);
  for (Moments& moments : snapshot.moments) {
    moments = {0, at::zeros_like(moments.exp_avg), at::zeros_like(moments.exp_avg_sq)};
  }
  TrainingRun weights_only(config, request.kernel, request.data, "sum", request.device);
  weights_only.restore("x.ckpt", snapshot);
  through.step();
  whole.step();
  weights_only.step();
  CHECK(same_state(whole.snapshot(), through.snapshot()));
  CHECK_FALSE(at::equal(weights_only.model().gamma(), through.model().gamma()));
}

TEST_CASE("an epoch hands out every example once, in another order each time", "[training]") {
  BatchOrder order(48, 16, 3);
  const auto epoch = [&] {
    std::vector<std::int64_t> seen;
    for (int i = 0; i < 3; ++i) {
      const at::Tensor batch = order.next();
      const auto* first = batch.const_data_ptr<std::int64_t>();
      seen.insert(seen.end(), first, first + 16);
    }
    return seen;
  };
  std::vector<std::int64_t> one = epoch(), two = epoch(), all(48);
  CHECK(one != two);
  std::iota(all.begin(), all.end(), 0);
  std::sort(one.begin(), one.end());
  std::sort(two.begin(), two.end());
  CHECK(one == all);
  CHECK(two == all);
}

TEST_CASE("only the last checkpoints stay, and a new run replaces an earlier one's", "[training]") {
  const TemporaryFolder folder;
  IntegrationRequest request = request_for(small_config(), folder.path());
  train_integration(request);
  CHECK(checkpoint_steps(folder / "reference") == std::vector<std::int64_t>{38, 39, 40});
  request.config.train.steps = 2;
  train_integration(request);
  CHECK(checkpoint_steps(folder / "reference") == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("a stop between steps is saved and resumed", "[training]") {
  const std::int64_t after = GENERATE(0, 1, 17, 40, 45, 79);
  CAPTURE(after);
  const TemporaryFolder through, stopped;
  Config config = small_config();
  config.train.checkpoint_every = 0;
  const IntegrationResult want = train_integration(request_for(config, through.path()));
  IntegrationRequest request = request_for(config, stopped.path());
  std::int64_t steps = 0;
  request.progress = [&](std::int64_t done) { steps = done; };
  request.stop = [&] { return steps >= after; };
  const IntegrationResult half = train_integration(request);
  CHECK(half.interrupted);
  CHECK(half.reference.steps + half.kernel.steps == after);
  request.stop = [] { return false; };
  request.resume = true;
  if (after == 0) {
    CHECK_THROWS_AS(train_integration(request), MissingFileError);
    return;
  }
  const IntegrationResult got = train_integration(request);
  CHECK(same_state(last_of(got, &IntegrationResult::kernel),
                   last_of(want, &IntegrationResult::kernel)));
}

TEST_CASE("a resume under another config is refused with the key and both values", "[training]") {
  const TemporaryFolder folder;
  IntegrationRequest request = request_for(small_config(), folder.path());
  request.config.train.steps = 3;
  train_integration(request);
  request.resume = true;
  Config other = small_config();
  std::string key;
  SECTION("hidden") {
    other.train.hidden = 18;
    key = "train.hidden must be the checkpoint's 17; got 18";
  }
  SECTION("seed") {
    other.seed = 8;
    key = "seed must be the checkpoint's 7; got 8";
  }
  SECTION("learning rate") {
    other.train.learning_rate = 0.25;
    key = "train.learning_rate must be the checkpoint's 0.003; got 0.25";
  }
  SECTION("fewer steps") {
    other.train.steps = 2;
    key = "steps must be at least the checkpoint's 3; got 2";
  }
  SECTION("what may differ") {
    other.train.steps = 5;
    other.train.checkpoint_every = 0;
    other.train.keep_checkpoints = 1;
  }
  IntegrationRequest changed = request_for(other, folder.path());
  changed.resume = true;
  if (key.empty()) {
    CHECK(train_integration(changed).kernel.resumed_from == 3);
    return;
  }
  std::string message;
  try {
    train_integration(changed);
  } catch (const ConfigError& error) {
    message = error.what();
  }
  CAPTURE(message);
  CHECK(message.find(key) != std::string::npos);
  CHECK(message.find("step-000003.ckpt") != std::string::npos);
}

}  // namespace
}  // namespace rmsnorm::test
