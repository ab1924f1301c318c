#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "rmsnorm/implementation.h"

namespace rmsnorm {

/// An implementation by the name that a config or command line gives it.
struct Subject {
  std::string name;
  const rmsnorm_implementation* table = nullptr;
  std::shared_ptr<void> library;  ///< keeps a plug-in loaded
};

/// `rowwise`, `reference`, `aten` or `plugin:PATH` for a device type. Throws UnavailableError when
/// this build, this device or that file has no such table, saying which names there are.
Subject find_subject(std::string_view name, std::int32_t device_type);

}  // namespace rmsnorm
