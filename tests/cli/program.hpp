#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/process.hpp"

namespace rmsnorm::test {

/// The program, run in a folder of its own, with a config of a few small cases in it.
class Program {
 public:
  Program() { write("small.yaml", small_config()); }

  static std::string small_config(const std::string& device = "cpu") {
    return "schema: 1\ndevice: " + device +
           "\nimplementations: [rowwise]\ncases:\n  rows: [1, 3]\n  cols: [31, 257]\n"
           "  dtypes: [float32]\ntolerance:\n  float32: {atol: 1.0e-5, rtol: 1.0e-4}\n";
  }

  ProcessResult run(std::vector<std::string> arguments,
                    std::vector<std::pair<std::string, std::string>> variables = {}) const {
    arguments.insert(arguments.begin(), RMSNORM_TEST_PROGRAM);
    return run_process(arguments, {.dir = folder_.path(), .variables = std::move(variables)});
  }

  void write(const std::string& file, const std::string& text) const {
    std::ofstream(path(file)) << text;
  }
  std::filesystem::path path(const std::string& file) const { return folder_.path() / file; }
  bool has(const std::string& file) const { return std::filesystem::exists(path(file)); }
  nlohmann::json json(const std::string& file) const {
    std::ifstream stream(path(file));
    return nlohmann::json::parse(stream);
  }

 private:
  TemporaryFolder folder_;
};

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

inline std::string last_line(const std::string& text) {
  const auto lines = lines_of(text);
  return lines.empty() ? std::string() : lines.back();
}

}  // namespace rmsnorm::test
