#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace rmsnorm {

/// Replaces `file` by `contents` so that at every moment the name holds either the old file or the
/// whole new one: a temporary file in the same folder, fsync, rename, fsync of the folder. The
/// folder is made if it is missing; a name that is a link is replaced, not followed. Throws
/// std::runtime_error naming the file, the step and the system's reason; the old file is then still
/// there (after a failure of the last step alone, the new one) and no temporary file is left
/// behind. A killed process may leave one, named .rmsnorm-PID-COUNTER.tmp.
void write_file_atomically(const std::filesystem::path& file, std::string_view contents);

/// The same in a folder that the caller holds open: `file` lies in it and names it in errors. It
/// goes into that folder even if another has taken its name since.
void write_file_atomically(int folder, const std::filesystem::path& file,
                           std::string_view contents);

/// The whole file. Throws std::runtime_error naming file and reason.
std::string read_file(const std::filesystem::path& file);

/// The SHA-256 of `bytes` as 64 lower-case hex digits. Source: FIPS 180-4.
std::string sha256(std::string_view bytes);

/// The first line of an exception's text: libtorch's go on with a stack trace.
std::string first_line(const char* text);

}  // namespace rmsnorm
