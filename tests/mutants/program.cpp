#include "mutants/program.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

namespace rmsnorm::test {
namespace {

constexpr unsigned kLongestRun_s = 120;

void redirect(const std::string& file, int flags, int descriptor) {
  dup2(open(file.c_str(), flags, 0600), descriptor);
}

}  // namespace

std::string contents(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

Folder::Folder() : path("/tmp/rmsnorm-test-XXXXXX") {
  if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
}

Folder::~Folder() {
  for (const char* name : {"config.yaml", "out", "err", "check-forward.json", "exercise.json"})
    std::remove((path + "/" + name).c_str());
  rmdir(path.c_str());
}

Ended run_program(std::vector<std::string> arguments, const Folder& folder) {
  const char* program = std::getenv("RMSNORM_BIN");
  if (program == nullptr) throw std::runtime_error("RMSNORM_BIN must name the program rmsnorm");
  arguments.insert(arguments.begin(), program);
  arguments.insert(arguments.end(), {"--out", folder.path});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string out = folder.path + "/out", err = folder.path + "/err";
  const pid_t pid = fork();
  if (pid == 0) {
    redirect("/dev/null", O_RDONLY, STDIN_FILENO);
    redirect(out, O_CREAT | O_TRUNC | O_WRONLY, STDOUT_FILENO);
    redirect(err, O_CREAT | O_TRUNC | O_WRONLY, STDERR_FILENO);
    alarm(kLongestRun_s);
    execv(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(out), contents(err)};
}

}  // namespace rmsnorm::test
