#include "train/support.hpp"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "core/files.hpp"
#include "operator/kernels.hpp"

namespace rmsnorm::test {
namespace {

namespace fs = std::filesystem;

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::string_view(static_cast<const char*>(a.const_data_ptr()), a.nbytes()) ==
             std::string_view(static_cast<const char*>(b.const_data_ptr()), b.nbytes());
}

[[noreturn]] void become_program(const fs::path& folder, std::vector<std::string> arguments,
                                 std::uint64_t file_bytes, const fs::path& out,
                                 const fs::path& err) {
  const int out_fd = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  const int err_fd = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  ::dup2(out_fd, STDOUT_FILENO);
  ::dup2(err_fd, STDERR_FILENO);
  if (file_bytes > 0) {
    const rlimit limit{file_bytes, file_bytes};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::signal(SIGXFSZ, SIG_IGN);
  }
  if (::chdir(folder.c_str()) != 0) ::_exit(127);
  arguments.insert(arguments.begin(), RMSNORM_PROGRAM);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::setenv("OMP_NUM_THREADS", "1", 1);
  ::execv(RMSNORM_PROGRAM, argv.data());
  ::_exit(127);
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "rmsnorm-train-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder: " + name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  remove_tree(path_);
}

void remove_tree(const fs::path& path) {
  const auto remove = [](const char* name, const struct stat*, int, FTW*) {
    ::remove(name);
    return 0;
  };
  ::nftw(path.c_str(), remove, 16, FTW_DEPTH | FTW_PHYS);
}

std::string small_config_text() {
  return R"(schema: 1
seed: 7
device: cpu
contract: minimum
implementations: [rowwise]
cases: {rows: [3], cols: [17], dtypes: [float32]}
tolerance:
  float32: {atol: 1.0e-5, rtol: 1.0e-4}
train:
  inputs: 6
  hidden: 17
  outputs: 2
  train_examples: 200
  validation_examples: 32
  test_examples: 48
  noise: 0.1
  steps: 40
  batch: 16
  learning_rate: 3.0e-3
  validate_every: 7
  checkpoint_every: 1
  keep_checkpoints: 3
)";
}

Config small_config() {
  return parse_config(small_config_text(), "small.yaml");
}

IntegrationRequest request_for(const Config& config, const fs::path& checkpoints) {
  IntegrationRequest request;
  request.config = config;
  request.data = draw_dataset(config.train, config.seed);
  request.data_sum = "drawn in memory";
  request.reference = reference_path(config);
  request.kernel = kernel_path(config, *find_kernels("tuned", RMSNORM_CPU), "tuned");
  request.checkpoints = checkpoints;
  return request;
}

bool same_state(const Snapshot& a, const Snapshot& b) {
  bool same = a.step == b.step && a.losses == b.losses &&
              a.validation.size() == b.validation.size() && a.identity == b.identity &&
              a.calls.forward == b.calls.forward && a.calls.backward == b.calls.backward &&
              a.order.position == b.order.position &&
              same_bits(a.order.generator, b.order.generator);
  for (std::size_t i = 0; same && i < a.validation.size(); ++i) {
    same =
        a.validation[i].step == b.validation[i].step && a.validation[i].mse == b.validation[i].mse;
  }
  for (std::size_t i = 0; same && i < a.parameters.size(); ++i) {
    same = same_bits(a.parameters[i], b.parameters[i]) && a.moments[i].step == b.moments[i].step &&
           same_bits(a.moments[i].exp_avg, b.moments[i].exp_avg) &&
           same_bits(a.moments[i].exp_avg_sq, b.moments[i].exp_avg_sq);
  }
  return same;
}

Process::Process(const fs::path& folder, const std::vector<std::string>& arguments,
                 std::uint64_t file_bytes) {
  static std::atomic<int> count{0};
  const std::string name = "process-" + std::to_string(count++);
  out_ = folder / (name + ".out");
  err_ = folder / (name + ".err");
  pid_ = ::fork();
  if (pid_ == 0) become_program(folder, arguments, file_bytes, out_, err_);
  if (pid_ < 0) throw std::runtime_error("fork failed");
}

Process::~Process() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Finished Process::wait() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  Finished finished;
  if (WIFEXITED(status)) finished.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) finished.signal = WTERMSIG(status);
  finished.out = read_file(out_);
  finished.err = read_file(err_);
  fs::remove(out_);
  fs::remove(err_);
  return finished;
}

Finished run_program(const fs::path& folder, const std::vector<std::string>& arguments,
                     std::uint64_t file_bytes) {
  return Process(folder, arguments, file_bytes).wait();
}

bool appears(const fs::path& file) {
  for (int i = 0; i < 5000; ++i) {
    if (fs::exists(file)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

}  // namespace rmsnorm::test
