#pragma once

#include <string>
#include <vector>

namespace rmsnorm::test {

/// The whole of a file; empty if there is none.
std::string contents(const std::string& file);

/// A folder of its own, removed with the files that the runs below leave in it.
struct Folder {
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path;
};

struct Ended {
  int exit_code = -1;  ///< -1: ended by a signal, as one that hangs is
  std::string out, err;
};

/// Runs the program that RMSNORM_BIN names, without a terminal, with its report in `folder`.
Ended run_program(std::vector<std::string> arguments, const Folder& folder);

}  // namespace rmsnorm::test
