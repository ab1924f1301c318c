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

/// Finds a table by what stands behind a prefix in a name, for a device type. Throws
/// UnavailableError.
using SubjectFamily = const rmsnorm_implementation& (*)(std::string_view name,
                                                        std::int32_t device_type);

/// Makes `PREFIX:NAME` a name that find_subject takes; `shown` is how its message spells it. For
/// the program to call before it finds any: the checks know the product's implementations only.
void add_subject_family(std::string prefix, std::string shown, SubjectFamily family);

/// `rowwise`, `reference`, `aten`, `plugin:PATH`, or a name of an added family, for a device type.
/// Throws UnavailableError when this build, this device or that file has no such table, saying
/// which names there are.
Subject find_subject(std::string_view name, std::int32_t device_type);

}  // namespace rmsnorm
