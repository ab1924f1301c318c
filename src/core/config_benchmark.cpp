#include <algorithm>

#include "core/config_reader.hpp"
#include "core/config_values.hpp"

namespace rmsnorm {
namespace {

/// Whether the protocol times the pass: a backward alone would be, in `calls`, a difference of two
/// times.
bool is_timed(const std::string& protocol, const std::string& pass) {
  return pass == "forward" || (pass == "backward") == (protocol != "calls");
}

/// Replaces in `out` what the map of a group, or the section itself, gives.
void read_benchmark_group(const Section& group, BenchmarkGroup& out, Contract contract) {
  using namespace std::string_view_literals;
  if (const auto list = group.optional("protocols")) {
    out.protocols = list->distinct("protocols", [](const Value& entry) {
      return std::string(entry.one_of({"calls"sv, "cold"sv, "graph"sv, "cold_write"sv}));
    });
  }
  if (const auto list = group.optional("passes")) {
    out.passes = list->distinct("passes", [](const Value& entry) {
      return std::string(entry.one_of({"forward"sv, "backward"sv, "forward_backward"sv}));
    });
  }
  if (const auto list = group.optional("shapes")) out.shapes = read_shapes(*list, contract);
  if (const auto list = group.optional("dtypes")) out.dtypes = read_dtypes(*list, contract);
  if (const auto list = group.optional("layouts")) {
    out.layouts = list->distinct("layouts", [contract](const Value& entry) {
      return read_kind(entry,
                       {Layout::contiguous, Layout::offset, Layout::row_strided, Layout::heads},
                       Layout::contiguous, contract);
    });
  }
  if (const auto list = group.optional("gammas")) {
    out.gammas = list->distinct("kinds of gamma", [contract](const Value& entry) {
      return read_kind(entry, {GammaKind::same, GammaKind::float32, GammaKind::none},
                       GammaKind::same, contract);
    });
  }
  if (const auto list = group.optional("implementations"))
    out.implementations = read_implementations(*list);
}

/// Every pass that a group names itself must be one that a protocol of the group times; inherited
/// ones that none times are dropped.
void settle_passes(const Section& section, BenchmarkGroup& group) {
  const auto untimed = [&](const std::string& pass) {
    return std::none_of(group.protocols.begin(), group.protocols.end(),
                        [&](const std::string& protocol) { return is_timed(protocol, pass); });
  };
  const auto list = section.optional("passes");
  for (const Value& entry : list ? list->entries("passes") : std::vector<Value>()) {
    if (!untimed(entry.node().text)) continue;
    entry.refuse(
        entry.node().text == "backward"
            ? "backward beside protocol cold or graph; calls times forward and forward_backward"
            : "forward_backward beside protocol calls; cold and graph time forward and backward");
  }
  std::erase_if(group.passes, untimed);
  if (group.passes.empty()) section.value().refuse("passes that its protocols time", "none");
}

}  // namespace

void read_benchmark(const Value& value, BenchmarkConfig& out, Contract contract) {
  const Section benchmark(
      value, {"protocols", "passes", "shapes", "dtypes", "layouts", "gammas", "implementations",
              "groups", "warmup_calls", "samples", "calls_per_sample", "full_check_elements"});
  read_benchmark_group(benchmark, out.groups.front(), contract);
  if (const auto groups = benchmark.optional("groups")) {
    if (const auto shapes = benchmark.optional("shapes"))
      shapes->refuse("shapes in each group beside groups", "both");
    const BenchmarkGroup defaults = out.groups.front();
    out.groups.clear();
    for (const Value& entry : groups->entries("maps of shapes, dtypes, protocols, ...")) {
      const Section group(entry, {"protocols", "passes", "shapes", "dtypes", "layouts", "gammas",
                                  "implementations"});
      group.required("shapes", "a list of pairs [rows, cols]");
      out.groups.push_back(defaults);
      read_benchmark_group(group, out.groups.back(), contract);
      settle_passes(group, out.groups.back());
    }
  } else {
    settle_passes(benchmark, out.groups.front());
  }
  benchmark.integer("warmup_calls", out.warmup_calls, 1, max_count);
  benchmark.integer("samples", out.samples, 3, 1'000'000);
  benchmark.integer("calls_per_sample", out.calls_per_sample, 1, max_count);
  benchmark.integer("full_check_elements", out.full_check_elements, 1, max_elements);
}

}  // namespace rmsnorm
