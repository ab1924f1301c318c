#pragma once

namespace rmsnorm {

/// The commit that was built and whether the working tree differed from it. git_version.cpp is
/// written by the build.
extern const char* const git_commit;
extern const bool git_dirty;

}  // namespace rmsnorm
