#include "train/checkpoint.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/serialize/output-archive.h>

#include <fstream>
#include <random>

#include "core/files.hpp"
#include "support/catch.hpp"
#include "train/checkpoint_archive.hpp"
#include "train/checkpoint_folder.hpp"
#include "train/support.hpp"

namespace rmsnorm::test {
namespace {

namespace fs = std::filesystem;

void write_bytes(const fs::path& file, const std::string& bytes) {
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << bytes;
}

/// What reading says, or "loaded".
std::string refusal(const fs::path& file) {
  try {
    check_checkpoint(file);
    return "loaded";
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A file whose sum is right for whatever it holds.
void write_sealed(const fs::path& file, const std::string& payload, int format = 1) {
  write_bytes(
      file, fmt::format("rmsnorm-checkpoint {} {} {}\n", format, payload.size(), sha256(payload)) +
                payload);
}

struct Trained {
  TemporaryFolder folder;
  Config config = small_config();
  IntegrationRequest request = request_for(config, folder.path());
  TrainingRun run{config, request.kernel, request.data, "sum", request.device};
  Trained() {
    for (int i = 0; i < 3; ++i) run.step();
  }
  fs::path file(const std::string& part = "good") const {
    return folder.path() / part / "step-000003.ckpt";
  }
  void write(const Snapshot& snapshot, const fs::path& to) const {
    fs::create_directories(to.parent_path());
    write_file_atomically(to, encode_checkpoint(snapshot, run.shapes()));
  }
};

TEST_CASE("what is written is read back bit for bit", "[checkpoint]") {
  const Trained trained;
  const Snapshot snapshot = trained.run.snapshot();
  trained.write(snapshot, trained.file());
  CHECK(same_state(check_checkpoint(trained.file()), snapshot));
}

TEST_CASE("a checkpoint written before the first step is a checkpoint", "[checkpoint]") {
  const TemporaryFolder folder;
  const Config config = small_config();
  const IntegrationRequest request = request_for(config, folder.path());
  const TrainingRun run(config, request.kernel, request.data, "sum", request.device);
  write_file_atomically(folder / "step-000000.ckpt",
                        encode_checkpoint(run.snapshot(), run.shapes()));
  CHECK(same_state(check_checkpoint(folder / "step-000000.ckpt"), run.snapshot()));
}

TEST_CASE("B042 no change of a single byte and no truncation loads", "[checkpoint]") {
  const Trained trained;
  trained.write(trained.run.snapshot(), trained.file());
  const std::string good = read_file(trained.file());
  std::mt19937_64 random(20240601);
  const auto below = [&](std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
  };
  const std::size_t header = good.find('\n') + 1;
  // Everywhere in the file, and each byte of the header, where a change has its own way to hide.
  for (std::size_t i = 0; i < 200 + header; ++i) {
    std::string bad = good;
    const std::size_t at = i < 200 ? below(good.size()) : i - 200;
    bad[at] = static_cast<char>(bad[at] ^ static_cast<char>(1 + below(255)));
    write_bytes(trained.file("bad"), bad);
    const std::string reason = refusal(trained.file("bad"));
    CAPTURE(at, reason);
    REQUIRE(reason != "loaded");
    REQUIRE(contains(reason, trained.file("bad").string() + ": "));
    REQUIRE_FALSE(contains(reason, "\n"));
  }
  for (std::size_t i = 0; i < 20; ++i) {
    const std::size_t size = i == 0 ? 0 : i == 1 ? good.size() - 1 : below(good.size());
    write_bytes(trained.file("bad"), good.substr(0, size));
    const std::string reason = refusal(trained.file("bad"));
    CAPTURE(size, reason);
    REQUIRE(reason != "loaded");
  }
  write_bytes(trained.file("bad"), good + "x");
  CHECK(contains(refusal(trained.file("bad")), "bytes, as its first line says"));
}

TEST_CASE("B129 files of another kind are refused in one line that names them", "[checkpoint]") {
  const Trained trained;
  torch::serialize::OutputArchive archive;
  archive.write("weight", at::ones({3}));
  fs::create_directories(trained.file().parent_path());
  SECTION("a zip of libtorch") {
    archive.save_to(trained.file().string());
  }
  SECTION("a text") {
    write_bytes(trained.file(), "weights: none\n");
  }
  SECTION("nothing") {
    write_bytes(trained.file(), "");
  }
  SECTION("a folder") {
    fs::create_directories(trained.file());
  }
  SECTION("no file") {}
  SECTION("a sealed text") {
    write_sealed(trained.file(), "{\"identity\": 1}\nno archive");
  }
  SECTION("a sealed nothing") {
    write_sealed(trained.file(), "");
  }
  SECTION("sealed JSON without an identity") {
    write_sealed(trained.file(), "{}\n");
  }
  const std::string reason = refusal(trained.file());
  CAPTURE(reason);
  CHECK(reason.starts_with(trained.file().string() + ": "));
  CHECK_FALSE(contains(reason, "\n"));
}

TEST_CASE("a newer format says so", "[checkpoint]") {
  const Trained trained;
  write_sealed(trained.file(), "whatever a later version writes", 2);
  const std::string reason = refusal(trained.file());
  CHECK(contains(reason, "format must be 1; got 2, written by a newer rmsnorm"));
}

TEST_CASE(
    "B004 a whole file that does not fit is refused with the key and both values, and the run is "
    "as it was",
    "[checkpoint]") {
  Trained trained;
  Snapshot snapshot = trained.run.snapshot();
  std::string want;
  SECTION("another size") {
    snapshot.parameters[2] = at::ones({18});
    want = "model.norm.weight must be Float[17]; got Float[18]";
  }
  SECTION("a size of one that would broadcast") {
    snapshot.parameters[2] = at::ones({1});
    want = "model.norm.weight must be Float[17]; got Float[1]";
  }
  SECTION("another dtype") {
    snapshot.parameters[0] = snapshot.parameters[0].to(at::kHalf);
    want = "model.first.weight must be Float[17, 6]; got Half[17, 6]";
  }
  SECTION("a moment of another size") {
    snapshot.moments[1].exp_avg_sq = at::ones({16});
    want = "exp_avg_sq.first.bias must be Float[17]; got Float[16]";
  }
  SECTION("the optimizer behind the model") {
    snapshot.moments[4].step = 2;
    want = "adam_steps of second.bias must be 3; got 2";
  }
  SECTION("a loss too few") {
    snapshot.losses.pop_back();
    want = "losses must be Double[3]; got Double[2]";
  }
  SECTION("another order state") {
    snapshot.order.generator = at::zeros({8}, at::kByte);
    want = "order.generator: must be ";
  }
  SECTION("another optimizer setting") {
    snapshot.adam["beta1"] = 0.5;
    want = "adam.beta1 must be the checkpoint's 0.5; got 0.9";
  }
  trained.write(snapshot, trained.file());
  const Snapshot before = trained.run.snapshot();
  std::string reason = "loaded";
  try {
    const OpenCheckpoint opened = open_checkpoint(trained.file());
    trained.run.restore(opened.file, read_snapshot(opened, trained.run.shapes()));
  } catch (const CheckpointError& error) {
    reason = error.what();
  }
  CAPTURE(reason, want);
  CHECK(contains(reason, want));
  CHECK(contains(reason, trained.file().string()));
  CHECK(same_state(trained.run.snapshot(), before));
}

/// The good archive less one part, or with one more.
std::string archive_without(const Snapshot& snapshot, const std::string& left_out,
                            const std::string& added) {
  using torch::serialize::OutputArchive;
  OutputArchive archive;
  const std::vector<ParameterShape> shapes = parameter_shapes(small_config().train);
  for (const std::string group : {"model", "exp_avg", "exp_avg_sq"}) {
    if (group == left_out) continue;
    std::map<std::string, OutputArchive> modules;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      if (group + "." + shapes[i].key() == left_out) continue;
      modules.try_emplace(shapes[i].module, archive.compilation_unit())
          .first->second.write(shapes[i].name, snapshot.parameters[i]);
    }
    OutputArchive whole(archive.compilation_unit());
    for (auto& [name, module] : modules) whole.write(name, module);
    archive.write(group, whole);
  }
  const auto write = [&](const std::string& key, const at::Tensor& value) {
    if (key != left_out) archive.write(key, value, true);
  };
  write("adam_steps", at::full({5}, 3, at::kLong));
  write("order_generator", snapshot.order.generator);
  write("losses", at::zeros({3}, at::kDouble));
  write("validation_steps", at::zeros({1}, at::kLong));
  write("validation_mse", at::zeros({1}, at::kDouble));
  if (!added.empty()) write(added, at::zeros({1}));
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

TEST_CASE("B039 a missing or an unknown part is refused by its key", "[checkpoint]") {
  const Trained trained;
  const Snapshot snapshot = trained.run.snapshot();
  const std::string meta = describe(snapshot, trained.run.shapes()).dump() + "\n";
  for (const std::string part :
       {"exp_avg", "exp_avg_sq", "model", "model.norm.weight", "exp_avg.second.bias", "adam_steps",
        "order_generator", "losses"}) {
    write_sealed(trained.file(), meta + archive_without(snapshot, part, ""));
    const std::string reason = refusal(trained.file());
    CAPTURE(part, reason);
    // norm has one parameter: without it there is no norm.
    CHECK(contains(reason, (part == "model.norm.weight" ? "model.norm" : part) + " must be"));
    CHECK(contains(reason, "it is missing"));
  }
  write_sealed(trained.file(), meta + archive_without(snapshot, "", "ema"));
  CHECK(contains(refusal(trained.file()), "ema must be absent"));
  write_sealed(trained.file(), meta + archive_without(snapshot, "", ""));
  CHECK(refusal(trained.file()) == "loaded");
}

TEST_CASE("a damaged newest checkpoint is left out for the one before, and all damaged is an error",
          "[checkpoint]") {
  const TemporaryFolder folder;
  IntegrationRequest request = request_for(small_config(), folder.path());
  const IntegrationResult want = train_integration(request);
  const fs::path newest = folder / "kernel-tuned" / "step-000040.ckpt";
  const Snapshot straight = check_checkpoint(newest);
  std::string bytes = read_file(newest);
  bytes[bytes.size() / 2] ^= 1;
  write_bytes(newest, bytes);
  std::vector<std::string> notes;
  request.note = [&](const std::string& note) { notes.push_back(note); };
  request.resume = true;
  const IntegrationResult got = train_integration(request);
  CHECK(got.kernel.resumed_from == 39);
  REQUIRE_FALSE(notes.empty());
  CHECK(std::any_of(notes.begin(), notes.end(),
                    [&](const std::string& note) { return contains(note, newest.string()); }));
  CHECK(same_state(check_checkpoint(newest), straight));
  for (const std::int64_t step : checkpoint_steps(newest.parent_path()))
    write_bytes(newest.parent_path() / checkpoint_name(step), bytes);
  CHECK_THROWS_AS(train_integration(request), CheckpointError);
}

}  // namespace
}  // namespace rmsnorm::test
