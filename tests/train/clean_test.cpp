#include <nlohmann/json.hpp>

#include <fstream>

#include "core/files.hpp"
#include "core/folder.hpp"
#include "support/catch.hpp"
#include "train/support.hpp"

namespace rmsnorm::test {
namespace {

namespace fs = std::filesystem;

void touch(const fs::path& file) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << "x";
}

/// A project with something in every generated folder, things beside them, and links.
struct Project {
  TemporaryFolder folder;
  Project() {
    touch(folder.path() / "outputs/check-forward.json");
    touch(folder.path() / "artifacts/checkpoints/reference/step-000001.ckpt");
    touch(folder.path() / "artifacts/.hidden");
    touch(folder.path() / "figures/training.svg");
    touch(folder.path() / "outside/precious");
    touch(folder.path() / "configs/minimum.yaml");
    fs::create_directory_symlink(folder.path() / "outside", folder.path() / "artifacts/link");
    fs::create_symlink(folder.path() / "outside/precious", folder.path() / "outputs/file-link");
  }
  bool has(const std::string& name) const { return fs::exists(folder.path() / name); }
  Finished clean(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "clean");
    return run_program(folder.path(), arguments);
  }
  bool outside_is_whole() const { return has("outside/precious") && has("configs/minimum.yaml"); }
};

bool holds_nothing(const fs::path& folder) {
  return fs::exists(folder) && names_in(folder).empty();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("clean --dry-run lists everything and removes nothing", "[clean]") {
  const Project project;
  const Finished done = project.clean({"--scope", "generated", "--dry-run"});
  CHECK(done.exit_code == 0);
  for (const std::string name :
       {"outputs/check-forward.json", "artifacts/checkpoints/reference/step-000001.ckpt",
        "figures/training.svg", "artifacts/link", "artifacts/.hidden"}) {
    CAPTURE(name, done.out);
    CHECK(contains(done.out, name));
    CHECK(project.has(name));
  }
  CHECK_FALSE(contains(done.out, "precious ("));
  CHECK(project.outside_is_whole());
  const auto report = nlohmann::json::parse(read_file(project.folder / "outputs/clean.json"));
  CHECK(report["clean"]["entries"].size() == 8);
}

TEST_CASE("clean removes what is inside and never what a link leads to", "[clean]") {
  const Project project;
  const Finished done = project.clean({"--scope", "generated"});
  CAPTURE(done.out, done.err);
  CHECK(done.exit_code == 0);
  for (const std::string folder : {"outputs", "artifacts", "figures"}) {
    CAPTURE(folder);
    CHECK(holds_nothing(project.folder / folder));
  }
  CHECK(project.outside_is_whole());
}

TEST_CASE("clean keeps to its scope", "[clean]") {
  const Project project;
  SECTION("outputs") {
    CHECK(project.clean({"--scope", "outputs"}).exit_code == 0);
    CHECK(holds_nothing(project.folder / "outputs"));
    CHECK(project.has("figures/training.svg"));
    CHECK(project.has("artifacts/.hidden"));
  }
  SECTION("artifacts, with a report in outputs") {
    CHECK(project.clean({"--scope", "artifacts"}).exit_code == 0);
    CHECK(holds_nothing(project.folder / "artifacts"));
    CHECK(project.has("outputs/clean.json"));
    CHECK(project.has("outputs/check-forward.json"));
  }
  SECTION("all, with the folders, and a report where it was asked for") {
    CHECK(project.clean({"--scope", "all", "--out", "elsewhere"}).exit_code == 0);
    CHECK_FALSE(project.has("outputs"));
    CHECK_FALSE(project.has("artifacts"));
    CHECK_FALSE(project.has("figures"));
    CHECK(project.has("elsewhere/clean.json"));
  }
  SECTION("no known scope") {
    CHECK(project.clean({"--scope", "everything"}).exit_code == 2);
    CHECK(project.clean({}).exit_code == 2);
    CHECK(project.has("outputs/check-forward.json"));
  }
  SECTION("another folder for artifacts is not cleaned") {
    CHECK(project.clean({"--scope", "artifacts", "--artifacts", "outside"}).exit_code == 2);
    CHECK(project.has("artifacts/.hidden"));
  }
  CHECK(project.outside_is_whole());
}

TEST_CASE("clean refuses a generated folder that is a link, before anything is removed",
          "[clean]") {
  const Project project;
  remove_tree(project.folder / "figures");
  fs::create_directory_symlink(project.folder / "outside", project.folder / "figures");
  const Finished done = project.clean({"--scope", "all"});
  CHECK(done.exit_code == 1);
  CHECK(contains(done.err, "figures: must be a folder of its own; it is a link"));
  CHECK(project.has("outputs/check-forward.json"));
  CHECK(project.outside_is_whole());
}

TEST_CASE("clean with nothing to clean passes", "[clean]") {
  const TemporaryFolder folder;
  CHECK(run_program(folder.path(), {"clean", "--scope", "all"}).exit_code == 0);
  CHECK_FALSE(fs::exists(folder / "outputs"));
}

}  // namespace
}  // namespace rmsnorm::test
