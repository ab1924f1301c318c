#include <c10/core/GradMode.h>
#include <torch/optim/adam.h>

#include <fstream>
#include <set>

#include "core/files.hpp"
#include "faults/memory.hpp"
#include "faults/support.hpp"
#include "rmsnorm/module.hpp"
#include "support/process.hpp"
#include "train/checkpoint.hpp"
#include "train/integration.hpp"
#include "train/run.hpp"

// TRAIN and the part of CKPT that has to do with devices. The rest is in tests/train.

namespace rmsnorm::test {
namespace {

Config training_config() {
  Config config;
  config.contract = Contract::full;
  config.train.inputs = 6;
  config.train.hidden = 17;
  config.train.outputs = 2;
  config.train.train_examples = 200;
  config.train.validation_examples = 32;
  config.train.test_examples = 48;
  config.train.steps = 40;
  config.train.batch = 16;
  config.train.checkpoint_every = 0;
  return config;
}

Dataset on(const Dataset& data, const at::Device& device) {
  Dataset moved = data;
  for (Split* split : {&moved.train, &moved.validation, &moved.test}) {
    split->inputs = split->inputs.to(device);
    split->targets = split->targets.to(device);
  }
  return moved;
}

TEST_CASE("B041 parameters are on the run's device, whatever device wrote the checkpoint",
          "[train]") {
  const Config config = training_config();
  const Dataset drawn = draw_dataset(config.train, config.seed);
  const at::Device devices[] = {test_device(), at::kCPU};
  for (const at::Device& from : devices) {
    for (const at::Device& to : devices) {
      const PathSpec path = reference_path(config);
      const Dataset data_from = on(drawn, from), data_to = on(drawn, to);
      TrainingRun writer(config, path, data_from, "sum", from);
      for (int i = 0; i < 3; ++i) writer.step();
      const TemporaryFolder folder;
      const std::filesystem::path file = folder.path() / "step-000003.ckpt";
      write_file_atomically(file, encode_checkpoint(writer.snapshot(), writer.shapes()));
      TrainingRun reader(config, path, data_to, "sum", to);
      const OpenCheckpoint opened = open_checkpoint(file);
      const Snapshot snapshot = read_snapshot(opened, reader.shapes());
      for (const at::Tensor& parameter : snapshot.parameters) CHECK(parameter.is_cpu());
      reader.restore(file, snapshot);
      const auto& got = reader.model().parameters();
      for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(got[i].device() == to);
        CHECK(same_bits(got[i].detach().cpu(), snapshot.parameters[i]));
      }
      CHECK_NOTHROW(reader.step());
    }
  }
}

TEST_CASE("B081 a gamma in float32 moves beside bfloat16 data, where a bfloat16 one could not",
          "[train]") {
  RMSNorm norm(RMSNormOptions({65}));
  norm->to(test_device());
  torch::optim::Adam adam(norm->parameters(), torch::optim::AdamOptions(1e-4));
  const at::Tensor x = random({64, 65}, at::kBFloat16), target = random({64, 65}, at::kBFloat16, 2);
  for (int step = 0; step < 200; ++step) {
    adam.zero_grad();
    const at::Tensor y = norm->forward(x);
    CHECK(y.scalar_type() == at::kBFloat16);
    (y - target).square().mean().backward();
    CHECK(norm->weight.grad().scalar_type() == at::kFloat);
    adam.step();
  }
  CHECK((norm->weight.detach() - 1).abs().min().item<double>() > 1e-4);
  // The training command keeps every parameter in float32: there is no dtype to set.
  const Model model(training_config().train, 1, test_device());
  for (const at::Tensor& parameter : model.parameters()) {
    CHECK(parameter.scalar_type() == at::kFloat);
  }
  CHECK_THROWS_WITH(parse_config("schema: 1\nimplementations: [rowwise]\n"
                                 "cases: {rows: [1], cols: [8], dtypes: [float32]}\n"
                                 "tolerance: {float32: {atol: 1.0e-5, rtol: 1.0e-4}}\n"
                                 "train: {dtype: bfloat16}\n",
                                 "c.yaml"),
                    contains_text("dtype"));
}

TEST_CASE("B085 step after step takes no more memory", "[train]") {
  const Config config = training_config();
  const Dataset data = on(draw_dataset(config.train, config.seed), test_device());
  const rmsnorm_implementation& table = *kernels()[1];
  TrainingRun run(config, kernel_path(config, table, "tuned"), data, "sum", test_device());
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) run.step();
    return allocated_bytes(test_device());
  };
  const std::int64_t warm = steps(100);
  // A kept graph would hold some 20 KB for each step: 40 MB.
  CHECK(steps(2000) - warm <= kMemoryNoise);
}

TEST_CASE("B130 a gamma without a gradient is reported, not dereferenced", "[train]") {
  const Config config = training_config();
  const TemporaryFolder folder;
  IntegrationRequest request;
  request.config = config;
  request.device = test_device();
  request.data = draw_dataset(config.train, config.seed);
  request.data_sum = "drawn in memory";
  request.reference = reference_path(config);
  request.kernel = kernel_path(config, *kernels()[1], "tuned");
  request.checkpoints = folder.path();
  const NormFunction right = request.kernel.norm;
  request.kernel.norm = [right](const at::Tensor& x, const at::Tensor& gamma) {
    return right(x, gamma.detach());
  };
  // Its optimizer never counted a step for gamma, which the checkpoint is refused for by name.
  CHECK_THROWS_AS(train_integration(request), CheckpointError);
  CHECK_THROWS_WITH(train_integration(request), contains_text("norm.weight"));
  const Dataset data = on(request.data, test_device());
  TrainingRun frozen(config, request.kernel, data, "sum", test_device());
  const auto first = frozen.look_at_first_batch();
  CHECK(first.gradients[2].eq(0).all().item<bool>());
  for (int i = 0; i < 3; ++i) CHECK_NOTHROW(frozen.step());
  CHECK(frozen.model().gamma().detach().eq(1).all().item<bool>());
  // Nothing has a gradient before the first step.
  TrainingRun run(config, reference_path(config), data, "sum", test_device());
  CHECK_NOTHROW(run.snapshot());
  CHECK_NOTHROW(run.mse(data.validation));
}

}  // namespace
}  // namespace rmsnorm::test
