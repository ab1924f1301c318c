#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include "core/folder.hpp"
#include "support/catch.hpp"
#include "train/checkpoint_folder.hpp"
#include "train/support.hpp"

namespace rmsnorm::test {
namespace {

namespace fs = std::filesystem;

constexpr int kKills = 50;

const std::vector<std::string> kTraining{"train-integration", "--config", "small.yaml", "--quiet"};

struct Lanes {
  Snapshot reference, kernel;
};

Lanes final_state(const fs::path& project) {
  const fs::path folder = project / "artifacts/checkpoints";
  return {check_checkpoint(folder / "reference/step-000040.ckpt"),
          check_checkpoint(folder / "kernel-tuned/step-000040.ckpt")};
}

/// Tells, as soon as the system knows, of a file that is made in one of two folders.
class Watch {
 public:
  explicit Watch(const fs::path& checkpoints) : fd_(::inotify_init1(IN_CLOEXEC)) {
    for (const char* path : {"reference", "kernel-tuned"}) {
      fs::create_directories(checkpoints / path);
      ::inotify_add_watch(fd_, (checkpoints / path).c_str(), IN_CREATE);
    }
  }
  ~Watch() { ::close(fd_); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Waits for that many new files; false when none comes for some seconds.
  bool wait(int files) {
    alignas(inotify_event) char buffer[4096];
    while (files > 0) {
      pollfd ready{fd_, POLLIN, 0};
      if (::poll(&ready, 1, 10'000) <= 0) return false;
      const ssize_t size = ::read(fd_, buffer, sizeof buffer);
      for (ssize_t at = 0; at < size; --files)
        at += static_cast<ssize_t>(sizeof(inotify_event)) +
              reinterpret_cast<const inotify_event*>(buffer + at)->len;
    }
    return true;
  }

 private:
  int fd_;
};

bool has_temporary(const fs::path& checkpoints) {
  for (const char* path : {"reference", "kernel-tuned"}) {
    for (const std::string& name : names_in(checkpoints / path))
      if (name.ends_with(".tmp")) return true;
  }
  return false;
}

/// Kills a training, sees that every checkpoint that is there is whole, resumes it to its end.
/// Returns whether the kill met a checkpoint being written.
bool kill_and_resume(bool while_writing, std::uint64_t seed, const Lanes& want) {
  const TemporaryFolder project;
  std::ofstream(project / "small.yaml") << small_config_text();
  const fs::path checkpoints = project / "artifacts/checkpoints";
  std::mt19937_64 random(seed);
  Watch watch(checkpoints);
  Process process(project.path(), kTraining);
  REQUIRE(watch.wait(1 + static_cast<int>(random() % 78)));
  if (!while_writing) std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
  ::kill(process.pid(), SIGKILL);
  process.wait();
  const bool met = has_temporary(checkpoints);

  std::int64_t last = 0;
  for (const fs::path& file : find_checkpoints(checkpoints)) last += check_checkpoint(file).step;
  std::vector<std::string> resume = kTraining;
  if (last > 0) resume.push_back("--resume");
  const Finished done = run_program(project.path(), resume);
  CAPTURE(while_writing, seed, done.err);
  REQUIRE(done.exit_code == 0);
  const Lanes got = final_state(project.path());
  REQUIRE(same_state(got.reference, want.reference));
  REQUIRE(same_state(got.kernel, want.kernel));
  REQUIRE_FALSE(has_temporary(checkpoints));
  return met;
}

TEST_CASE("B042 a training killed at any moment resumes to the bits of the undisturbed one",
          "[kill]") {
  const TemporaryFolder undisturbed;
  std::ofstream(undisturbed / "small.yaml") << small_config_text();
  REQUIRE(run_program(undisturbed.path(), kTraining).exit_code == 0);
  const Lanes want = final_state(undisturbed.path());
  int met = 0;
  for (int i = 0; i < kKills / 2; ++i) met += kill_and_resume(false, 1000 + i, want);
  int while_writing = 0, tries = 0;
  for (; while_writing < kKills / 2 && tries < kKills; ++tries)
    while_writing += kill_and_resume(true, 2000 + tries, want);
  WARN(kKills / 2 + tries << " kills, " << met + while_writing << " of them inside a write");
  CHECK(while_writing == kKills / 2);
}

}  // namespace
}  // namespace rmsnorm::test
