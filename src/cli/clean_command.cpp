#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>

#include "cli/app.hpp"
#include "cli/console.hpp"
#include "cli/removal.hpp"

namespace rmsnorm::cli {
namespace {

namespace fs = std::filesystem;

struct CleanFlags {
  std::string scope;
  bool dry_run = false;
  CLI::Option* out = nullptr;
};

/// Below the current directory; the only folders that are ever cleaned. `all` also removes the
/// folders themselves: in a container they are mount points and have to stay.
const std::map<std::string, std::vector<std::string>> kScopes{
    {"generated", {"outputs", "artifacts", "figures"}},
    {"outputs", {"outputs"}},
    {"artifacts", {"artifacts"}},
    {"all", {"outputs", "artifacts", "figures"}}};

std::string shown(const Removable& entry) {
  switch (entry.kind) {
    case Removable::Kind::folder:
      return entry.path.string() + "/";
    case Removable::Kind::link:
      return fmt::format("{} (a link to {}, which stays)", entry.path.string(), entry.link_target);
    case Removable::Kind::file:
      break;
  }
  return fmt::format("{} ({} bytes)", entry.path.string(), entry.bytes);
}

void clean(Context& context, const CleanFlags& flags) {
  if (context.options.artifacts != "artifacts") {
    throw ConfigError(
        "clean: --artifacts must be left out: only outputs, artifacts and figures in the current "
        "directory are cleaned; got " +
        context.options.artifacts);
  }
  const std::vector<std::string>& folders = kScopes.at(flags.scope);
  // Everything is listed before anything is removed, so that a refusal removes nothing.
  std::map<std::string, std::vector<Removable>> listed;
  for (const std::string& folder : folders) listed[folder] = list_inside(folder);
  const bool remove_folders = flags.scope == "all";

  nlohmann::json names = nlohmann::json::array();
  std::uintmax_t bytes = 0;
  const auto list = [&](const std::string& line, const fs::path& path) {
    if (!context.options.quiet) print_line(line);
    names.push_back(path.string());
  };
  for (const std::string& folder : folders) {
    for (const Removable& entry : listed[folder]) {
      list("  " + shown(entry), entry.path);
      bytes += entry.bytes;
    }
    if (remove_folders && fs::exists(folder)) list("  " + folder + "/", folder);
  }
  if (!flags.dry_run) {
    for (const std::string& folder : folders) {
      remove_listed(folder, listed[folder]);
      if (remove_folders) fs::remove(folder);
    }
  }
  const std::string summary = fmt::format(
      "{} {} entries, {} bytes", flags.dry_run ? "would remove" : "removed", names.size(), bytes);
  context.report.section("clean") = {{"scope", flags.scope},
                                     {"dry_run", flags.dry_run},
                                     {"entries", std::move(names)},
                                     {"bytes", bytes}};
  context.report.passes_without_cases();
  if (!context.options.quiet) print_line(summary);
  // A report would be the first thing in the folder that was just emptied.
  const bool emptied =
      std::find(folders.begin(), folders.end(), context.options.out) != folders.end();
  if (emptied && !flags.dry_run && flags.out->count() == 0) context.write_report = false;
}

}  // namespace

void add_clean_command(Program& program) {
  auto flags = std::make_shared<CleanFlags>();
  const Subcommand sub = add_subcommand(
      program, "clean",
      "List, then remove what is in outputs/, artifacts/ and figures/ of the current directory",
      [flags](Context& context) { clean(context, *flags); }, Needs::files_only);
  sub.app
      ->add_option("--scope", flags->scope,
                   "generated: all three; outputs; artifacts; all: the three with the folders "
                   "themselves")
      ->required()
      ->check(CLI::IsMember({"generated", "outputs", "artifacts", "all"}));
  sub.app->add_flag("--dry-run", flags->dry_run, "list only, remove nothing");
  flags->out = sub.app->get_option("--out");
}

}  // namespace rmsnorm::cli
