#include "check/subject.hpp"

#include <dlfcn.h>

#include <utility>
#include <vector>

#include "operator/kernels.hpp"
#include "reference/tensor_tables.hpp"
#include "rmsnorm/errors.hpp"

namespace rmsnorm {
namespace {

constexpr std::string_view kPluginPrefix = "plugin:";

struct Family {
  std::string prefix, shown;
  SubjectFamily find;
};

std::vector<Family>& families() {
  static std::vector<Family> added;
  return added;
}

Subject load_plugin(std::string_view name, std::int32_t device_type) {
  const std::string path(name.substr(kPluginPrefix.size()));
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw UnavailableError("plugin:" + path + ": the shared library must load; got " + dlerror());
  }
  std::shared_ptr<void> library(handle, [](void* h) { dlclose(h); });
  const auto plugin = reinterpret_cast<rmsnorm_plugin_function>(dlsym(handle, "rmsnorm_plugin"));
  if (plugin == nullptr) {
    throw UnavailableError("plugin:" + path +
                           ": must export the function rmsnorm_plugin; it does not (" +
                           "include/rmsnorm/implementation.h declares it)");
  }
  const rmsnorm_implementation* table = plugin(RMSNORM_ABI_VERSION, device_type);
  if (table == nullptr) {
    throw UnavailableError("plugin:" + path + ": has no table for ABI version " +
                           std::to_string(RMSNORM_ABI_VERSION) + " on " +
                           (device_type == RMSNORM_CUDA ? "CUDA" : "the CPU"));
  }
  if (table->abi_version != RMSNORM_ABI_VERSION || table->device_type != device_type ||
      table->forward == nullptr || table->backward == nullptr || table->name == nullptr) {
    throw UnavailableError(
        "plugin:" + path +
        ": the table must have the ABI version and device asked for, a name, forward and backward");
  }
  return {std::string(name), table, std::move(library)};
}

}  // namespace

void add_subject_family(std::string prefix, std::string shown, SubjectFamily family) {
  families().push_back({std::move(prefix), std::move(shown), family});
}

Subject find_subject(std::string_view name, std::int32_t device_type) {
  if (name.starts_with(kPluginPrefix)) return load_plugin(name, device_type);
  if (const auto* table = find_kernels(name, device_type))
    return {std::string(name), table, nullptr};
  if (const auto* table = find_tensor_table(name, device_type))
    return {std::string(name), table, nullptr};
  std::string known = "rowwise, tuned, reference, aten";
  for (const Family& family : families()) {
    if (name.starts_with(family.prefix))
      return {std::string(name), &family.find(name.substr(family.prefix.size()), device_type),
              nullptr};
    known += ", " + family.shown;
  }
  throw UnavailableError(
      "implementation " + std::string(name) + ": must be one that this build has on " +
      (device_type == RMSNORM_CUDA ? "CUDA" : "the CPU") + ": " + known + " or plugin:PATH");
}

}  // namespace rmsnorm
