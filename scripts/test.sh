#!/usr/bin/env bash
# Sets up, builds everything, runs the tests that this machine can run. Arguments go to ctest: scripts/test.sh -R contract
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

say_left_out() {
  local names
  names=$(ctest --preset "$RMSNORM_PRESET" -N -L gpu 2>/dev/null | sed -n 's/^ *Test *#[0-9]*: /  /p')
  printf 'left out: nvidia-smi shows no GPU here, so nothing on a GPU is tested; left out is not passed\n'
  printf '%s\n' "${names:-  (preset $RMSNORM_PRESET has no tests labelled gpu)}"
}

# ctest excludes a test only when every -LE matches it, so a caller's -LE must become one pattern with ours.
exclude_gpu() {
  local pattern=gpu
  arguments=()
  while (($#)); do
    if [[ $1 == -LE || $1 == --label-exclude ]] && (($# > 1)); then
      pattern+="|$2"
      shift
    else
      arguments+=("$1")
    fi
    shift
  done
  arguments+=(-LE "$pattern")
}

# ctest counts a skipped test among its "passed"; a test that did not run proves nothing.
count_passed() {
  awk '
    /tests passed, [0-9]+ tests failed out of [0-9]+/ { total = $NF; failed = $4 }
    /^The following tests did not run:/ { idle_list = 1 }
    /^The following tests FAILED:/ { idle_list = 0 }
    idle_list && /\(Skipped\)/ { idle++ }
    END { if (total == "") exit 1; print total - failed - idle, idle + 0 }' "$1"
}

report() {
  local counts passed idle
  counts=$(count_passed "$1") ||
    die 1 "tests: ctest must print a summary; none came (its output is above); see $1"
  read -r passed idle <<<"$counts"
  ((idle == 0)) || printf 'skipped: %s tests; skipped is not passed\n' "$idle"
  printf '%s tests passed\n' "$passed"
}

main() {
  local arguments=("$@") log status=0
  RMSNORM_TARGETS='' "$root/scripts/build.sh"
  # shellcheck source=/dev/null
  source "$root/build/setup.env"
  export RMSNORM_LIBTORCH
  cd "$root"
  has_gpu || { say_left_out && exclude_gpu "$@"; }
  log=build/$RMSNORM_PRESET/ctest.log
  ctest --preset "$RMSNORM_PRESET" --no-tests=error --output-on-failure -j2 "${arguments[@]}" 2>&1 |
    tee "$log" || status=$?
  report "$log"
  exit "$status"
}

main "$@"
