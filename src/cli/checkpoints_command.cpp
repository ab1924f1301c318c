#include <fmt/format.h>

#include "cli/app.hpp"
#include "cli/console.hpp"
#include "cli/interrupt.hpp"
#include "core/files.hpp"
#include "train/checkpoint_folder.hpp"

namespace rmsnorm::cli {
namespace {

void check_checkpoints(Context& context) {
  const std::filesystem::path dir = context.options.artifacts;
  std::vector<std::vector<std::string>> table{
      {"checkpoint", "step", "forward calls", "backward calls", "device", "state"}};
  nlohmann::json& section = context.report.section("checkpoints");
  section = nlohmann::json::array();
  for (const std::filesystem::path& file : find_checkpoints(dir)) {
    stop_if_interrupted();
    try {
      const Snapshot snapshot = check_checkpoint(file);
      const std::string device = snapshot.origin.value("device", "-");
      section.push_back({{"file", file.string()}, {"state", "passed"}, {"step", snapshot.step}});
      table.push_back({file.string(), std::to_string(snapshot.step),
                       std::to_string(snapshot.calls.forward),
                       std::to_string(snapshot.calls.backward), device, "passed"});
    } catch (const std::exception& error) {
      const std::string reason = first_line(error.what());
      section.push_back({{"file", file.string()}, {"state", "failed"}, {"reason", reason}});
      table.push_back({file.string(), "-", "-", "-", "-", "failed"});
      context.report.fail(reason);
      print_error(reason);
    }
  }
  if (section.empty()) {
    print_error(dir.string() + ": no checkpoint is there; train-integration writes them");
    return;
  }
  context.report.passes_without_cases();
  if (!context.options.quiet) print_table(table);
}

}  // namespace

void add_checkpoints_command(Program& program) {
  add_subcommand(program, "check-checkpoints",
                 "Open every checkpoint under artifacts/: sums, sizes, counters", check_checkpoints,
                 Needs::files_only);
}

}  // namespace rmsnorm::cli
