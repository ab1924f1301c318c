#include "core/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace rmsnorm {
namespace {

[[noreturn]] void fail(const std::filesystem::path& file, std::string_view step, int error) {
  throw std::runtime_error(fmt::format("{}: {} failed: {}", file.string(), step,
                                       std::generic_category().message(error)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  /// Some file systems report a failed write only here.
  int close() {
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd);
  }

 private:
  int fd_;
};

/// Removes a file unless told to keep it.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::filesystem::path path) : path_(std::move(path)) {}
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void keep() { path_.clear(); }

 private:
  std::filesystem::path path_;
};

/// A name in `folder` that no other thread or process of this machine uses. Short, so that a file
/// name of the greatest length still has room for its temporary file.
std::filesystem::path temporary_name(const std::filesystem::path& folder) {
  static std::atomic<unsigned> counter{0};
  return folder / fmt::format(".rmsnorm-{}-{}.tmp", ::getpid(), counter++);
}

/// The descriptor of a new file, whose name goes to `path`. A name left behind by a killed process
/// is stepped over.
int create_temporary(const std::filesystem::path& folder, std::filesystem::path& path) {
  int fd;
  do {
    path = temporary_name(folder);
    fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd < 0 && (errno == EEXIST || errno == EINTR));
  return fd;
}

/// 0, or the errno of the write that failed.
int write_all(int fd, std::string_view contents) {
  while (!contents.empty()) {
    const ssize_t written = ::write(fd, contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : EIO;
    contents.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace

void write_file_atomically(const std::filesystem::path& file, std::string_view contents) {
  if (!file.has_filename()) fail(file, "opening it for writing", EISDIR);
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(file, "making its folder", error.value());
  const Descriptor folder_fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder_fd.get() < 0) fail(file, "opening its folder", errno);

  std::filesystem::path temporary_path;
  Descriptor fd(create_temporary(folder, temporary_path));
  if (fd.get() < 0) fail(file, "making a temporary file beside it", errno);
  TemporaryFile temporary(temporary_path);
  if (const int write_error = write_all(fd.get(), contents)) {
    fail(file, "writing a temporary file beside it", write_error);
  }
  if (::fsync(fd.get()) != 0) fail(file, "fsync of a temporary file beside it", errno);
  if (fd.close() != 0) fail(file, "closing a temporary file beside it", errno);
  if (::rename(temporary.path().c_str(), file.c_str()) != 0) {
    fail(file, "renaming a temporary file to it", errno);
  }
  temporary.keep();
  // EINVAL: the file system has no fsync of folders.
  if (::fsync(folder_fd.get()) != 0 && errno != EINVAL) fail(file, "fsync of its folder", errno);
}

std::string read_file(const std::filesystem::path& file) {
  const Descriptor fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) fail(file, "opening it", errno);
  constexpr std::size_t chunk_bytes = std::size_t{1} << 18;
  std::string contents;
  std::size_t filled = 0;
  for (;;) {
    contents.resize(filled + chunk_bytes);
    const ssize_t count = ::read(fd.get(), contents.data() + filled, chunk_bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(file, "reading it", errno);
    if (count == 0) break;
    filled += static_cast<std::size_t>(count);
  }
  contents.resize(filled);
  return contents;
}

std::string first_line(const char* text) {
  const std::string_view view(text);
  return std::string(view.substr(0, view.find('\n')));
}

}  // namespace rmsnorm
