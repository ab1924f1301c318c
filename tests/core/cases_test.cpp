#include "core/cases.hpp"

#include <set>
#include <string>
#include <vector>

#include "support/catch.hpp"

using rmsnorm::Case;
using rmsnorm::Dtype;
using rmsnorm::expand_cases;
using rmsnorm::GammaKind;
using rmsnorm::InputKind;
using rmsnorm::Layout;
using rmsnorm::select_cases;

namespace {

std::vector<std::string> names_of(const std::vector<Case>& cases) {
  std::vector<std::string> names;
  for (const Case& problem : cases) names.push_back(problem.name());
  return names;
}

std::vector<Case> minimum_cases() {
  return expand_cases(rmsnorm::read_config(RMSNORM_SOURCE_DIR "/configs/minimum.yaml"));
}

rmsnorm::Config config_of(std::vector<rmsnorm::CaseGrid> grids) {
  rmsnorm::Config config;
  config.cases = std::move(grids);
  return config;
}

}  // namespace

TEST_CASE("the minimum config has 72 cases, by dtype, then rows, then cols") {
  const std::vector<Case> cases = minimum_cases();
  REQUIRE(cases.size() == 72);
  const std::vector<std::string> names = names_of(cases);
  CHECK(names[0] == "1x1-float32");
  CHECK(names[1] == "1x31-float32");
  CHECK(names[6] == "3x1-float32");
  CHECK(names[35] == "128x4096-float32");
  CHECK(names[36] == "1x1-float16");
  CHECK(names[71] == "128x4096-float16");
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == 72);
  CHECK(cases[71].rows == 128);
  CHECK(cases[71].cols == 4096);
  CHECK(cases[71].dtype == Dtype::float16);
}

TEST_CASE("a case's name says what differs from the defaults") {
  CHECK(Case{128, 257, Dtype::float32}.name() == "128x257-float32");
  CHECK(Case{3, 64, Dtype::bfloat16, Layout::heads, GammaKind::float32, InputKind::scaled}.name() ==
        "3x64-bfloat16-heads-gamma-float32-scaled");
  CHECK(Case{3, 64, Dtype::float64, Layout::expanded_dy, GammaKind::none}.name() ==
        "3x64-float64-expanded_dy-gamma-none");
}

TEST_CASE("cases follow the grids and vary layout, gamma and inputs innermost") {
  rmsnorm::CaseGrid shapes;
  shapes.shapes = {{2, 3}, {1, 4}};
  shapes.dtypes = {Dtype::float16};
  shapes.layouts = {Layout::contiguous, Layout::offset};
  shapes.gammas = {GammaKind::same, GammaKind::float32};
  shapes.inputs = {InputKind::normal, InputKind::scaled};
  rmsnorm::CaseGrid product;
  product.rows = {5};
  product.cols = {6};
  product.dtypes = {Dtype::float32};
  const std::vector<std::string> names = names_of(expand_cases(config_of({shapes, product})));
  REQUIRE(names.size() == 17);
  CHECK(names[0] == "2x3-float16");
  CHECK(names[1] == "2x3-float16-scaled");
  CHECK(names[2] == "2x3-float16-gamma-float32");
  CHECK(names[4] == "2x3-float16-offset");
  CHECK(names[8] == "1x4-float16");
  CHECK(names[16] == "5x6-float32");
}

TEST_CASE("gamma float32 is left out beside dtypes of more than 16 bits") {
  rmsnorm::CaseGrid grid;
  grid.shapes = {{2, 3}};
  grid.dtypes = {Dtype::float64, Dtype::float32, Dtype::float16, Dtype::bfloat16};
  grid.gammas = {GammaKind::same, GammaKind::float32};
  CHECK(names_of(expand_cases(config_of({grid}))) ==
        std::vector<std::string>{"2x3-float64", "2x3-float32", "2x3-float16",
                                 "2x3-float16-gamma-float32", "2x3-bfloat16",
                                 "2x3-bfloat16-gamma-float32"});
}

TEST_CASE("a case that two grids name appears once") {
  rmsnorm::CaseGrid grid;
  grid.shapes = {{2, 3}};
  grid.dtypes = {Dtype::float32};
  CHECK(expand_cases(config_of({grid, grid})).size() == 1);
}

TEST_CASE("cases are selected by name with * for any text") {
  const std::vector<Case> cases = minimum_cases();
  CHECK(select_cases(cases, "").size() == 72);
  CHECK(select_cases(cases, "*").size() == 72);
  CHECK(names_of(select_cases(cases, "1x1-float32")) == std::vector<std::string>{"1x1-float32"});
  CHECK(select_cases(cases, "1x1").empty());
  CHECK(select_cases(cases, "1x*").size() == 12);
  CHECK(select_cases(cases, "*-float16").size() == 36);
  CHECK(select_cases(cases, "*x257-*").size() == 12);
  CHECK(select_cases(cases, "1*7x*1-float1*6").size() == 4);
  CHECK(select_cases(cases, "*-float16*").size() == 36);
  CHECK(select_cases(cases, "*-float1").empty());
  CHECK(select_cases(cases, "?x1-float32").empty());
}

TEST_CASE("a case's seed depends on the run's seed and on the name and is fixed for good") {
  CHECK(rmsnorm::case_seed(20240601, "128x257-float32") ==
        rmsnorm::case_seed(20240601, "128x257-float32"));
  std::set<std::uint64_t> seeds;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    for (const Case& problem : minimum_cases())
      seeds.insert(rmsnorm::case_seed(seed, problem.name()));
  }
  CHECK(seeds.size() == 7200);
  CHECK(rmsnorm::case_seed(0, "") == 0x813f0174a2367c13u);
  CHECK(rmsnorm::case_seed(20240601, "1x1-float32") == 0x8d7fc8ecebed2d7au);
}
