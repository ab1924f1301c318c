#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <csignal>
#include <fstream>

#include "core/files.hpp"
#include "support/catch.hpp"
#include "train/checkpoint_folder.hpp"
#include "train/support.hpp"

namespace rmsnorm::test {
namespace {

namespace fs = std::filesystem;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Project {
  TemporaryFolder folder;
  fs::path checkpoints = folder / "artifacts/checkpoints";
  Project() { std::ofstream(folder / "small.yaml") << small_config_text(); }
  std::vector<std::string> training(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"train-integration", "--config", "small.yaml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  Finished train(const std::vector<std::string>& more = {}) const {
    return run_program(folder.path(), training(more));
  }
  nlohmann::json report(const std::string& command) const {
    return nlohmann::json::parse(read_file(folder / ("outputs/" + command + ".json")));
  }
};

TEST_CASE("train, stop by a signal, resume: the program says how, and the curve is whole",
          "[failure]") {
  const int signal = GENERATE(SIGINT, SIGTERM);
  CAPTURE(signal);
  const Project project;
  Process process(project.folder.path(),
                  project.training({"--steps", "30000", "--checkpoint-every", "50"}));
  REQUIRE(appears(project.checkpoints / "reference/step-000050.ckpt"));
  ::kill(process.pid(), signal);
  const Finished stopped = process.wait();
  CAPTURE(stopped.err, stopped.out);
  CHECK(stopped.exit_code == 130);
  CHECK(contains(stopped.err,
                 "--steps 30000 --checkpoint-every 50 --artifacts artifacts --out "
                 "outputs --resume"));
  CHECK(project.report("train-integration")["exit_code"] == 130);
  const std::int64_t steps = checkpoint_steps(project.checkpoints / "reference").back();
  CHECK(project.report("train-integration")["training"]["losses"]["reference"].size() ==
        static_cast<std::size_t>(steps));
  const std::string more = std::to_string(steps + 1);
  const Finished done = project.train({"--steps", more, "--resume"});
  CAPTURE(done.err);
  CHECK(done.exit_code == 0);
  const nlohmann::json training = project.report("train-integration")["training"];
  CHECK(training["losses"]["reference"].size() == static_cast<std::size_t>(steps) + 1);
  CHECK(training["calls"]["forward"] == steps + 1);
  CHECK(training["resumed_from"]["reference"] == steps);
}

TEST_CASE("a resume where nothing was saved is exit 3", "[failure]") {
  const Project project;
  const Finished done = project.train({"--resume"});
  CHECK(done.exit_code == 3);
  CHECK(contains(done.err, "leave out --resume"));
}

TEST_CASE("flags that make no sense are exit 2", "[failure]") {
  const Project project;
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--steps", "0"},
           {"--steps", "many"},
           {"--checkpoint-every", "-1"},
           {"--implementation", "rowwise", "--implementation", "aten"}}) {
    CAPTURE(flags);
    CHECK(project.train(flags).exit_code == 2);
  }
  CHECK(project.train({"--implementation", "nothing-of-that-name"}).exit_code == 3);
  CHECK_FALSE(fs::exists(project.checkpoints));
}

TEST_CASE("data that do not match their sums are refused", "[failure]") {
  const Project project;
  REQUIRE(run_program(project.folder.path(), {"acquire", "--config", "small.yaml"}).exit_code == 0);
  const fs::path file = project.folder / "artifacts/data/validation.bin";
  std::string bytes = read_file(file);
  bytes[100] ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
  const Finished done = project.train();
  CHECK(done.exit_code == 1);
  CHECK(contains(done.err, "validation.bin: SHA-256 must be"));
}

TEST_CASE("B129 checkpoints that will not load: file, reason and exit code", "[failure]") {
  const Project project;
  REQUIRE(project.train({"--steps", "3", "--checkpoint-every", "0"}).exit_code == 0);
  REQUIRE(run_program(project.folder.path(), {"check-checkpoints"}).exit_code == 0);
  const fs::path file = project.checkpoints / "kernel-tuned/step-000003.ckpt";
  const std::string good = read_file(file);
  std::string bad = good;
  std::string reason;
  SECTION("a byte") {
    bad[good.size() / 3] ^= 4;
    reason = "SHA-256 must be";
  }
  SECTION("cut") {
    bad.resize(good.size() / 2);
    reason = "truncated or damaged";
  }
  SECTION("a newer format") {
    bad[bad.find(" 1 ") + 1] = '2';
    reason = "written by a newer rmsnorm";
  }
  SECTION("a text") {
    bad = "not a checkpoint\n";
    reason = "not a checkpoint of rmsnorm";
  }
  std::ofstream(file, std::ios::binary) << bad;
  for (const auto& arguments :
       {project.training({"--resume"}), std::vector<std::string>{"check-checkpoints"}}) {
    const Finished done = run_program(project.folder.path(), arguments);
    CAPTURE(done.err);
    CHECK(done.exit_code == 1);
    CHECK(contains(done.err, "kernel-tuned/step-000003.ckpt: "));
    CHECK(contains(done.err, reason));
    CHECK(read_file(file) == bad);
  }
  CHECK(check_checkpoint(project.checkpoints / "reference/step-000003.ckpt").step == 3);
}

TEST_CASE("B004 a resume with another width is exit 2 with both widths", "[failure]") {
  const Project project;
  REQUIRE(project.train({"--steps", "3"}).exit_code == 0);
  std::string text = small_config_text();
  text.replace(text.find("hidden: 17"), 10, "hidden: 18");
  std::ofstream(project.folder / "small.yaml") << text;
  const Finished done = project.train({"--resume"});
  CHECK(done.exit_code == 2);
  CHECK(contains(done.err, "train.hidden must be the checkpoint's 17; got 18"));
}

TEST_CASE("no checkpoint there: nothing was compared", "[failure]") {
  const Project project;
  CHECK(run_program(project.folder.path(), {"check-checkpoints"}).exit_code == 4);
}

TEST_CASE("a file size limit: a clear error, and the earlier checkpoints stay", "[failure]") {
  const Project project;
  REQUIRE(project.train({"--steps", "5"}).exit_code == 0);
  const Finished done = run_program(project.folder.path(), project.training({"--resume"}), 4096);
  CAPTURE(done.err);
  CHECK(done.exit_code == 1);
  CHECK(contains(done.err, "checkpoint of step 6 was not written"));
  CHECK(contains(done.err, "File too large"));
  CHECK(run_program(project.folder.path(), {"check-checkpoints"}).exit_code == 0);
  CHECK(checkpoint_steps(project.checkpoints / "reference") == std::vector<std::int64_t>{3, 4, 5});
  CHECK(project.train({"--resume"}).exit_code == 0);
}

TEST_CASE("B042 a full disk: a clear error, and the earlier checkpoints stay", "[failure]") {
  const Project project;
  fs::create_directories(project.checkpoints);
  // Room for some checkpoints of some 30 KiB, not for the ten that are to be kept.
  if (::mount("none", project.checkpoints.c_str(), "tmpfs", 0, "size=192k") != 0) {
    WARN("no right to mount a small file system: the file size limit stands in for it");
    return;
  }
  std::string text = small_config_text();
  text.replace(text.find("keep_checkpoints: 3"), 19, "keep_checkpoints: 99");
  std::ofstream(project.folder / "small.yaml") << text;
  const Finished done = project.train();
  const Finished check = run_program(project.folder.path(), {"check-checkpoints"});
  const std::vector<std::int64_t> steps = checkpoint_steps(project.checkpoints / "reference");
  ::umount(project.checkpoints.c_str());
  CAPTURE(done.err, check.err);
  CHECK(done.exit_code == 1);
  CHECK(contains(done.err, "No space left on device"));
  CHECK(contains(done.err, "earlier checkpoints are as they were"));
  CHECK(check.exit_code == 0);
  CHECK(steps.size() >= 2);
}

TEST_CASE("a place where no folder can be made is a clear error", "[failure]") {
  const Project project;
  fs::create_directories(project.checkpoints.parent_path());
  std::ofstream(project.checkpoints) << "a file";
  const Finished done = project.train();
  CHECK(done.exit_code == 1);
  CHECK(contains(done.err, "artifacts/checkpoints/reference: making the folder"));
  CHECK(read_file(project.checkpoints) == "a file");
}

TEST_CASE("B042 a read-only file system is a clear error, and its checkpoints stay", "[failure]") {
  const Project project;
  REQUIRE(project.train({"--steps", "3"}).exit_code == 0);
  const char* folder = project.checkpoints.c_str();
  const bool mounted = ::mount(folder, folder, nullptr, MS_BIND, nullptr) == 0;
  if (!mounted ||
      ::mount(nullptr, folder, nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) != 0) {
    if (mounted) ::umount(folder);
    WARN("no right to mount read-only: left out");
    return;
  }
  const Finished done = project.train({"--resume"});
  const Finished check = run_program(project.folder.path(), {"check-checkpoints"});
  ::umount(folder);
  CAPTURE(done.err);
  CHECK(done.exit_code == 1);
  CHECK(contains(done.err, "Read-only file system"));
  CHECK(check.exit_code == 0);
}

TEST_CASE("a folder that vanishes is an error, not a new folder", "[failure]") {
  const Project project;
  Process process(project.folder.path(), project.training({"--steps", "100000"}));
  REQUIRE(appears(project.checkpoints / "reference/step-000003.ckpt"));
  fs::rename(project.checkpoints / "reference", project.folder / "moved");
  const Finished done = process.wait();
  CAPTURE(done.err);
  CHECK(done.exit_code == 1);
  CHECK(contains(done.err, "reference: must stay where it is while training"));
  CHECK_FALSE(fs::exists(project.checkpoints / "reference"));
  for (const fs::path& file : find_checkpoints(project.folder / "moved"))
    CHECK(check_checkpoint(file).step > 0);
}

TEST_CASE("two trainings do not share a folder", "[failure]") {
  const Project project;
  REQUIRE(project.train({"--steps", "2"}).exit_code == 0);
  const int fd = ::open((project.checkpoints / "reference").c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(::flock(fd, LOCK_EX | LOCK_NB) == 0);
  const Finished done = project.train({"--resume"});
  ::close(fd);
  CHECK(done.exit_code == 1);
  CHECK(contains(done.err, "one training at a time"));
  CHECK(project.train({"--resume"}).exit_code == 0);
}

}  // namespace
}  // namespace rmsnorm::test
