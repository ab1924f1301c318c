#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace rmsnorm::test {

struct ProcessResult {
  int exit_code = -1;  ///< 128 + signal for a process that a signal ended
  bool timed_out = false;
  std::string out, err;
};

struct ProcessOptions {
  std::filesystem::path dir;                                   ///< empty: this process's
  std::vector<std::pair<std::string, std::string>> variables;  ///< added to the environment
  std::chrono::seconds timeout{60};
};

/// Runs a program and waits for it; both outputs are read while it runs. A program that outlives
/// the timeout is killed.
ProcessResult run_process(const std::vector<std::string>& argv, const ProcessOptions& options = {});

/// A folder of its own for a test, removed with everything in it at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace rmsnorm::test
