#include "core/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

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

 private:
  int fd_;
};

/// A new, empty file beside a file that it is to replace; removed unless renamed to it.
class TemporaryFile {
 public:
  /// `folder` is open. A name left behind by a killed process is stepped over.
  explicit TemporaryFile(int folder) : folder_(folder), fd_(-1) {
    // Short, so that a file name of the greatest length still has room for its temporary file.
    static std::atomic<unsigned> counter{0};
    do {
      name_ = fmt::format(".rmsnorm-{}-{}.tmp", ::getpid(), counter++);
      fd_ = ::openat(folder, name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd_ < 0 && (errno == EEXIST || errno == EINTR));
    if (fd_ < 0) name_.clear();
  }
  ~TemporaryFile() {
    close();
    if (!name_.empty()) ::unlinkat(folder_, name_.c_str(), 0);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  /// Below 0 where none could be made; errno says why.
  int fd() const { return fd_; }
  /// Some file systems report a failed write only here.
  int close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 ? 0 : ::close(fd);
  }
  int rename_to(const std::string& name) {
    const int result = ::renameat(folder_, name_.c_str(), folder_, name.c_str());
    if (result == 0) name_.clear();
    return result;
  }

 private:
  int folder_, fd_;
  std::string name_;
};

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
  const Descriptor open_folder(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (open_folder.get() < 0) fail(file, "opening its folder", errno);
  write_file_atomically(open_folder.get(), file, contents);
}

void write_file_atomically(int folder, const std::filesystem::path& file,
                           std::string_view contents) {
  TemporaryFile temporary(folder);
  if (temporary.fd() < 0) fail(file, "making a temporary file beside it", errno);
  if (const int write_error = write_all(temporary.fd(), contents)) {
    fail(file, "writing a temporary file beside it", write_error);
  }
  if (::fsync(temporary.fd()) != 0) fail(file, "fsync of a temporary file beside it", errno);
  if (temporary.close() != 0) fail(file, "closing a temporary file beside it", errno);
  if (temporary.rename_to(file.filename()) != 0) {
    fail(file, "renaming a temporary file to it", errno);
  }
  // EINVAL: the file system has no fsync of folders.
  if (::fsync(folder) != 0 && errno != EINVAL) fail(file, "fsync of its folder", errno);
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
