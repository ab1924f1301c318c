#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint.hpp"

namespace rmsnorm {

/// The checkpoints of one path's run, `FOLDER/step-000050.ckpt`. While it exists no other process
/// trains into the folder; a killed process leaves no lock behind.
class CheckpointFolder {
 public:
  /// Makes the folder if there is none and removes temporary files that a killed run left in it.
  /// Throws std::runtime_error when the folder cannot be used or another process holds it.
  CheckpointFolder(std::filesystem::path folder, std::int64_t keep);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  const std::filesystem::path& path() const { return folder_; }

  /// The newest checkpoint whose bytes are whole, and no value in a folder without checkpoints.
  /// Damaged newer ones are told to `skipped`. Throws CheckpointError when all are damaged, or when
  /// the newest whole one has another format.
  std::optional<OpenCheckpoint> latest(
      const std::function<void(const std::string&)>& skipped) const;

  /// Writes the snapshot's step and then removes all but the last `keep` of this run; those of an
  /// earlier run that this one does not continue go too, now that it has one of its own. Throws
  /// std::runtime_error that says what to do; the checkpoints before are then as they were.
  std::filesystem::path write(const Snapshot& snapshot, const std::vector<ParameterShape>& shapes);

  /// From now on the checkpoints up to this step belong to this run.
  void continue_from(std::int64_t step);

  /// Removes what this run has not written or continued, and all but its last ones.
  void remove_all_but_last();

 private:
  void require_still_there() const;

  std::filesystem::path folder_;
  std::int64_t keep_;
  int fd_ = -1;
  std::vector<std::int64_t> own_steps_;
};

/// Steps for which `folder` has a file of a checkpoint's name, ascending.
std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& folder);

/// Every checkpoint file below `dir`, in the order of their paths; links to folders are not
/// followed.
std::vector<std::filesystem::path> find_checkpoints(const std::filesystem::path& dir);

/// Throws CheckpointError unless the file can be resumed from: whole, and its sizes, counters, name
/// and finiteness agree with what it says of itself.
Snapshot check_checkpoint(const std::filesystem::path& file);

}  // namespace rmsnorm
