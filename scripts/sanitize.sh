#!/usr/bin/env bash
# Builds preset cpu-asan and runs the tests of core, operator, checks, kernels and faults under the address and
# undefined-behaviour sanitizers. Arguments go to ctest. Longer than scripts/test.sh, and no part of it.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

readonly tests='^rmsnorm_(core|operator|check|kernel|fault)_tests'
readonly targets=(rmsnorm_core_tests rmsnorm_operator_tests rmsnorm_check_tests rmsnorm_kernel_tests rmsnorm_fault_tests)

main() {
  [[ -e $root/build/setup.env ]] || "$root/scripts/setup.sh"
  # shellcheck source=/dev/null
  source "$root/build/setup.env"
  export RMSNORM_LIBTORCH
  cd "$root"
  cmake --preset cpu-asan
  cmake --build --preset cpu-asan --target "${targets[@]}"
  # libtorch keeps what it made until the process ends, and is not instrumented: leaks are not looked for. All else ends
  # the test.
  export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}
  export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}
  ctest --preset cpu-asan --no-tests=error -R "$tests" -j1 --timeout 1500 "$@"
}

main "$@"
