#include "core/folder.hpp"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <stdexcept>
#include <system_error>

namespace rmsnorm {

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), &::closedir);
  if (stream == nullptr && errno == ENOENT) return {};
  if (stream == nullptr) {
    throw std::runtime_error(
        folder.string() + ": opening the folder failed: " + std::generic_category().message(errno));
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) {
    throw std::runtime_error(
        folder.string() + ": listing the folder failed: " + std::generic_category().message(errno));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace rmsnorm
