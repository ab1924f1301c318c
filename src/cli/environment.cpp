#include "cli/environment.hpp"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <charconv>
#include <fstream>

#include "core/config.hpp"
#include "operator/device.hpp"
#include "rmsnorm/errors.hpp"

namespace rmsnorm::cli {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

std::string cpu_text() {
  return cpu_name() + ", " + std::to_string(at::get_num_threads()) + " threads";
}

ChosenDevice cuda_device(std::int32_t index) {
  if (const std::string problem = cuda_problem(index); !problem.empty()) {
    throw UnavailableError("--device cuda: " + problem);
  }
  return {c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)),
          "device: cuda:" + std::to_string(index) + " (" + cuda_facts(index).device_name + ")"};
}

}  // namespace

ChosenDevice choose_device(const std::string& text) {
  const c10::Device cpu(c10::kCPU);
  if (text == "cpu") return {cpu, "device: cpu (" + cpu_text() + ")"};
  if (text == "cuda") return cuda_device(0);
  if (text == "auto") {
    const std::string problem = cuda_problem(0);
    if (problem.empty()) return cuda_device(0);
    return {cpu, "device: cpu (" + cpu_text() + "); auto, because " + problem};
  }
  constexpr std::string_view kPrefix = "cuda:";
  std::int32_t index = -1;
  if (text.starts_with(kPrefix)) {
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + kPrefix.size(), end, index);
    if (parsed.ec == std::errc{} && parsed.ptr == end && index >= 0 && index < 128)
      return cuda_device(index);
  }
  throw ConfigError("--device: must be cpu, cuda, cuda:I or auto; got " + text);
}

Environment environment_of(const c10::Device& device) {
  Environment environment;
  environment.device = device.is_cuda() ? "cuda:" + std::to_string(device.index()) : "cpu";
  environment.libtorch = libtorch_version();
  environment.cuda_runtime = cuda_runtime_version();
  environment.threads = at::get_num_threads();
  if (!device.is_cuda()) {
    environment.device_name = cpu_name();
    return environment;
  }
  const CudaFacts facts = cuda_facts(device.index());
  environment.device_name = facts.device_name;
  environment.sm = facts.sm;
  environment.driver = facts.driver;
  return environment;
}

std::string libtorch_version() {
  return TORCH_VERSION;
}

}  // namespace rmsnorm::cli
