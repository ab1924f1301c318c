#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace rmsnorm {

/// Names of what is in `folder`, sorted, without `.` and `..`; none where there is no such folder.
/// Throws std::runtime_error naming folder and reason.
///
/// In place of std::filesystem's iterators, remove_all and is_empty: libtorch exports those of an
/// older C++ library under the same names, and a program in which the two mix crashes. Which ones a
/// program gets hangs on the order of its libraries, so that nothing here relies on it.
std::vector<std::string> names_in(const std::filesystem::path& folder);

}  // namespace rmsnorm
