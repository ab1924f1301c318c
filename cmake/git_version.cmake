# Run at every build: writes git_version.cpp when the commit or the state of the tree has changed.
# RMSNORM_COMMIT in the environment stands in where the sources have no history (an image, a copied tree).
set(commit "unknown")
set(dirty "false")
if(NOT "$ENV{RMSNORM_COMMIT}" STREQUAL "")
  set(commit "$ENV{RMSNORM_COMMIT}")
else()
  execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${SOURCE_DIR}
    OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed)
    set(commit "${head}")
    execute_process(COMMAND git status --porcelain WORKING_DIRECTORY ${SOURCE_DIR}
      OUTPUT_VARIABLE changes OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(NOT changes STREQUAL "")
      set(dirty "true")
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [[
#include "core/git_version.hpp"

namespace rmsnorm {
const char* const git_commit = "@commit@";
const bool git_dirty = @dirty@;
}  // namespace rmsnorm
]] @ONLY)
