#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace rmsnorm::cli {

/// Something below a generated folder.
struct Removable {
  std::filesystem::path path;
  enum class Kind { file, link, folder } kind = Kind::file;
  std::uintmax_t bytes = 0;  ///< of a file
  std::string link_target;   ///< of a link, as it is spelled there
};

/// Everything inside `folder`, what is inside a folder before the folder; nothing where there is no
/// folder. No link is followed: a link is an entry itself. Throws std::runtime_error when `folder`
/// is itself a link or no folder, or when another file system is mounted inside it.
std::vector<Removable> list_inside(const std::filesystem::path& folder);

/// Removes what was listed in `folder` and nothing else, entry by entry through open folders, so
/// that a link put in the way meanwhile is not followed either. What is already gone is no error.
/// Throws std::runtime_error naming the first entry that cannot be removed.
void remove_listed(const std::filesystem::path& folder, const std::vector<Removable>& entries);

}  // namespace rmsnorm::cli
