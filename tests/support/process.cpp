#include "support/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <system_error>

namespace rmsnorm::test {
namespace {

[[noreturn]] void fail(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe2");
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    if (read >= 0) close(read);
    if (write >= 0) close(write);
  }
  void close_write() {
    close(write);
    write = -1;
  }
};

[[noreturn]] void become(const std::vector<std::string>& argv, const ProcessOptions& options,
                         int out, int err) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  for (const auto& [name, value] : options.variables) setenv(name.c_str(), value.c_str(), 1);
  if (!options.dir.empty() && chdir(options.dir.c_str()) != 0) _exit(126);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

/// Appends what is there; false at the end of the stream.
bool drain(int fd, std::string& text) {
  std::array<char, 4096> buffer;
  const ssize_t count = read(fd, buffer.data(), buffer.size());
  if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0 || (count < 0 && errno == EINTR);
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& argv, const ProcessOptions& options) {
  Pipe out, err;
  const pid_t child = fork();
  if (child < 0) fail("fork");
  if (child == 0) become(argv, options, out.write, err.write);
  out.close_write();
  err.close_write();

  ProcessResult result;
  const auto end = std::chrono::steady_clock::now() + options.timeout;
  std::array<pollfd, 2> waits{pollfd{out.read, POLLIN, 0}, pollfd{err.read, POLLIN, 0}};
  std::string* const texts[] = {&result.out, &result.err};
  int open_streams = 2;
  while (open_streams > 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      result.timed_out = true;
      kill(child, SIGKILL);
      break;
    }
    if (poll(waits.data(), waits.size(), static_cast<int>(left.count())) <= 0) continue;
    for (std::size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].fd < 0 || waits[i].revents == 0 || drain(waits[i].fd, *texts[i])) continue;
      waits[i].fd = -1;
      --open_streams;
    }
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "rmsnorm-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) fail("mkdtemp");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace rmsnorm::test
