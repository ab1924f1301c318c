#define CATCH_CONFIG_RUNNER
#include "support/catch.hpp"

#include "check/subject.hpp"
#include "mutants/mutants.hpp"

int main(int argc, char** argv) {
  rmsnorm::add_subject_family("mutant:", "mutant:NAME, mutant:tuned/NAME", rmsnorm::mutant_table);
  return Catch::Session().run(argc, argv);
}
