#pragma once

#include <ATen/core/Tensor.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "train/checkpoint.hpp"
#include "train/integration.hpp"

namespace rmsnorm::test {

/// A folder that is gone at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// Not std::filesystem's, see core/folder.hpp.
void remove_tree(const std::filesystem::path& path);

/// A network small enough that a step takes a fraction of a millisecond.
Config small_config();
/// The same as the text of a config file.
std::string small_config_text();

/// A request for both paths on the CPU, with rowwise kernels and data drawn in memory.
IntegrationRequest request_for(const Config& config, const std::filesystem::path& checkpoints);

/// Equal in every bit of parameters, moments, losses, validation, order and counters.
bool same_state(const Snapshot& a, const Snapshot& b);

/// What a finished process left.
struct Finished {
  int exit_code = -1;  ///< -1: ended by a signal
  int signal = 0;
  std::string out, err;
};

/// The program, running in a folder of its own with one thread.
class Process {
 public:
  /// file_bytes: the largest file that it may write; 0: any.
  Process(const std::filesystem::path& folder, const std::vector<std::string>& arguments,
          std::uint64_t file_bytes = 0);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  pid_t pid() const { return pid_; }
  Finished wait();

 private:
  std::filesystem::path out_, err_;
  pid_t pid_ = -1;
};

Finished run_program(const std::filesystem::path& folder, const std::vector<std::string>& arguments,
                     std::uint64_t file_bytes = 0);

/// Waits until `file` is there; false after some seconds.
bool appears(const std::filesystem::path& file);

}  // namespace rmsnorm::test
