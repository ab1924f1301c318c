#include "train/checkpoint_folder.hpp"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <system_error>

#include "core/files.hpp"
#include "core/folder.hpp"

namespace rmsnorm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-", kSuffix = ".ckpt";

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  const std::string_view digits =
      std::string_view(name).substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc{} || name != checkpoint_name(step)) return std::nullopt;
  return step;
}

[[noreturn]] void fail(const fs::path& folder, const std::string& what, int error) {
  throw std::runtime_error(
      fmt::format("{}: {}: {}", folder.string(), what, std::generic_category().message(error)));
}

/// As write_file_atomically names them.
bool is_temporary(const std::string& name) {
  return name.starts_with(".rmsnorm-") && name.ends_with(".tmp");
}

/// The keys of a config echo that decide the sizes.
TrainConfig sizes_in(const OpenCheckpoint& checkpoint) {
  TrainConfig sizes;
  try {
    const nlohmann::json& train = checkpoint.identity().at("train");
    sizes.inputs = train.at("inputs").get<std::int64_t>();
    sizes.hidden = train.at("hidden").get<std::int64_t>();
    sizes.outputs = train.at("outputs").get<std::int64_t>();
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: identity.train must have the model's sizes; got {}",
                                      checkpoint.file.string(), first_line(error.what())));
  }
  return sizes;
}

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path folder, std::int64_t keep)
    : folder_(std::move(folder)), keep_(keep) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail(folder_, "making the folder for checkpoints failed", error.value());
  fd_ = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) fail(folder_, "opening the folder for checkpoints failed", errno);
  // The folder itself is the lock: nothing to remove afterwards, and it falls with the process.
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    ::close(fd_);
    if (reason == EWOULDBLOCK) {
      throw std::runtime_error(folder_.string() +
                               ": must be used by one training at a time; another process is "
                               "training into it: wait for it, or take another --artifacts");
    }
    fail(folder_, "locking the folder for checkpoints failed", reason);
  }
  for (const std::string& name : names_in(folder_)) {
    if (is_temporary(name)) ::unlink((folder_ / name).c_str());
  }
}

CheckpointFolder::~CheckpointFolder() {
  ::close(fd_);
}

std::optional<OpenCheckpoint> CheckpointFolder::latest(
    const std::function<void(const std::string&)>& skipped) const {
  const std::vector<std::int64_t> steps = checkpoint_steps(folder_);
  std::string newest_damage;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      return open_checkpoint(folder_ / checkpoint_name(*step));
    } catch (const DamagedCheckpoint& error) {
      if (newest_damage.empty()) newest_damage = error.what();
      skipped(error.what());
    }
  }
  if (steps.empty()) return std::nullopt;
  throw CheckpointError(newest_damage +
                        "; no checkpoint of this run is whole: leave out --resume "
                        "to start anew");
}

void CheckpointFolder::continue_from(std::int64_t step) {
  for (const std::int64_t earlier : checkpoint_steps(folder_)) {
    if (earlier <= step) own_steps_.push_back(earlier);
  }
}

void CheckpointFolder::require_still_there() const {
  struct stat opened {
  }, named{};
  const bool there = ::fstat(fd_, &opened) == 0 && ::stat(folder_.c_str(), &named) == 0 &&
                     opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
  if (!there) {
    throw std::runtime_error(folder_.string() +
                             ": must stay where it is while training; it was removed or replaced");
  }
}

fs::path CheckpointFolder::write(const Snapshot& snapshot,
                                 const std::vector<ParameterShape>& shapes) {
  const fs::path file = folder_ / checkpoint_name(snapshot.step);
  try {
    const std::string bytes = encode_checkpoint(snapshot, shapes);
    require_still_there();
    write_file_atomically(fd_, file, bytes);
  } catch (const std::exception& error) {
    throw std::runtime_error(
        fmt::format("checkpoint of step {} was not written: {}; earlier checkpoints are as they "
                    "were: mend that and go on with --resume",
                    snapshot.step, first_line(error.what())));
  }
  own_steps_.erase(std::remove(own_steps_.begin(), own_steps_.end(), snapshot.step),
                   own_steps_.end());
  own_steps_.push_back(snapshot.step);
  remove_all_but_last();
  return file;
}

void CheckpointFolder::remove_all_but_last() {
  const auto first_kept =
      own_steps_.end() - std::min<std::ptrdiff_t>(keep_, std::ssize(own_steps_));
  own_steps_.erase(own_steps_.begin(), first_kept);
  for (const std::int64_t step : checkpoint_steps(folder_)) {
    if (std::find(own_steps_.begin(), own_steps_.end(), step) == own_steps_.end())
      ::unlinkat(fd_, checkpoint_name(step).c_str(), 0);
  }
}

std::vector<std::int64_t> checkpoint_steps(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names_in(folder)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::vector<fs::path> find_checkpoints(const fs::path& dir) {
  std::vector<fs::path> files;
  for (const std::string& name : names_in(dir)) {
    const fs::path inside = dir / name;
    std::error_code error;
    if (fs::symlink_status(inside, error).type() == fs::file_type::directory) {
      const std::vector<fs::path> deeper = find_checkpoints(inside);
      files.insert(files.end(), deeper.begin(), deeper.end());
    } else if (name.ends_with(kSuffix)) {
      files.push_back(inside);
    }
  }
  return files;
}

Snapshot check_checkpoint(const fs::path& file) {
  const OpenCheckpoint checkpoint = open_checkpoint(file);
  const std::vector<ParameterShape> shapes = parameter_shapes(sizes_in(checkpoint));
  Snapshot snapshot = read_snapshot(checkpoint, shapes);
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw CheckpointError(fmt::format("{}: {}", file.string(), what));
  };
  const std::string name = file.filename().string();
  require(name == checkpoint_name(snapshot.step),
          fmt::format("the name must be that of its step, {}; got {}",
                      checkpoint_name(snapshot.step), name));
  const bool reference = checkpoint.identity().value("path", "") == "reference";
  const std::int64_t calls = reference ? 0 : snapshot.step;
  require(
      snapshot.calls.forward == calls && snapshot.calls.backward == calls,
      fmt::format("calls of the kernels must be {} forward and {} backward at step {}; got {} "
                  "and {}",
                  calls, calls, snapshot.step, snapshot.calls.forward, snapshot.calls.backward));
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    for (const at::Tensor& tensor :
         {snapshot.parameters[i], snapshot.moments[i].exp_avg, snapshot.moments[i].exp_avg_sq}) {
      require(tensor.isfinite().all().item<bool>(), shapes[i].key() + " must be finite; it is not");
    }
  }
  for (const double loss : snapshot.losses) require(std::isfinite(loss), "losses must be finite");
  return snapshot;
}

}  // namespace rmsnorm
