#include "cli/removal.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>

#include <cerrno>
#include <climits>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace rmsnorm::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, std::string_view what, int error) {
  throw std::runtime_error(fmt::format("clean: {}: {}: {}", path.string(), what,
                                       std::generic_category().message(error)));
}

class Folder {
 public:
  Folder(int parent, const std::string& name)
      : fd_(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {}
  ~Folder() {
    if (fd_ >= 0) ::close(fd_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  int fd() const { return fd_; }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    const int copy = ::openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(copy < 0 ? nullptr : ::fdopendir(copy),
                                                     &::closedir);
    while (const dirent* entry = stream == nullptr ? nullptr : ::readdir(stream.get())) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  int fd_;
};

std::string link_target(int folder, const std::string& name) {
  char target[PATH_MAX];
  const ssize_t length = ::readlinkat(folder, name.c_str(), target, sizeof target);
  return length < 0 ? std::string() : std::string(target, static_cast<std::size_t>(length));
}

void list(const Folder& folder, const fs::path& path, dev_t device, std::vector<Removable>& out) {
  for (const std::string& name : folder.names()) {
    struct stat status {};
    const fs::path inside = path / name;
    if (::fstatat(folder.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      fail(inside, "looking at it failed", errno);
    if (S_ISLNK(status.st_mode)) {
      out.push_back({inside, Removable::Kind::link, 0, link_target(folder.fd(), name)});
    } else if (S_ISDIR(status.st_mode)) {
      if (status.st_dev != device) {
        throw std::runtime_error(fmt::format(
            "clean: {}: must be on the file system of its folder; another one is mounted there: "
            "unmount it first",
            inside.string()));
      }
      const Folder inner(folder.fd(), name);
      if (inner.fd() < 0) fail(inside, "opening it failed", errno);
      list(inner, inside, device, out);
      out.push_back({inside, Removable::Kind::folder, 0, {}});
    } else {
      out.push_back(
          {inside, Removable::Kind::file, static_cast<std::uintmax_t>(status.st_size), {}});
    }
  }
}

/// Removes the entry at `relative`, a path without links on the way.
void remove_at(int folder, const fs::path& relative, const Removable& entry) {
  if (std::next(relative.begin()) != relative.end()) {
    const fs::path first = *relative.begin();
    const Folder inner(folder, first.string());
    if (inner.fd() < 0 && errno == ENOENT) return;
    if (inner.fd() < 0) fail(entry.path, "opening the folders on the way failed", errno);
    remove_at(inner.fd(), relative.lexically_relative(first), entry);
    return;
  }
  const int flag = entry.kind == Removable::Kind::folder ? AT_REMOVEDIR : 0;
  if (::unlinkat(folder, relative.c_str(), flag) != 0 && errno != ENOENT)
    fail(entry.path, "removing it failed", errno);
}

}  // namespace

std::vector<Removable> list_inside(const fs::path& folder) {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) {
    if (errno == ENOENT) return {};
    fail(folder, "looking at it failed", errno);
  }
  if (!S_ISDIR(status.st_mode)) {
    throw std::runtime_error(fmt::format(
        "clean: {}: must be a folder of its own; it is {}: nothing was removed", folder.string(),
        S_ISLNK(status.st_mode) ? "a link, which may lead outside" : "no folder"));
  }
  const Folder opened(AT_FDCWD, folder.string());
  if (opened.fd() < 0) fail(folder, "opening it failed", errno);
  std::vector<Removable> out;
  list(opened, folder, status.st_dev, out);
  return out;
}

void remove_listed(const fs::path& folder, const std::vector<Removable>& entries) {
  if (entries.empty()) return;
  const Folder opened(AT_FDCWD, folder.string());
  if (opened.fd() < 0) fail(folder, "opening it failed", errno);
  for (const Removable& entry : entries)
    remove_at(opened.fd(), entry.path.lexically_relative(folder), entry);
}

}  // namespace rmsnorm::cli
