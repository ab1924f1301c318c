#pragma once

#include <c10/core/Device.h>

#include <string>

#include "core/report.hpp"

namespace rmsnorm::cli {

struct ChosenDevice {
  c10::Device device;
  std::string announcement;  ///< the first line of output: what runs, and why
};

/// `cpu`, `cuda`, `cuda:I` or `auto` (CUDA when a usable device exists, else the CPU). Throws
/// UnavailableError with what to do when CUDA was asked for and cannot run, ConfigError for another
/// word.
ChosenDevice choose_device(const std::string& text);

Environment environment_of(const c10::Device& device);

/// Of libtorch, as it was compiled against.
std::string libtorch_version();

}  // namespace rmsnorm::cli
