#!/usr/bin/env bash
# Looks at form, changes nothing: clang-format always, clang-tidy on request.
# Usage: scripts/check.sh [tidy]   (the include rules are tests, see scripts/test.sh)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

sources() {
  git -C "$root" ls-files --cached --others --exclude-standard -- \
    '*.h' '*.hpp' '*.cpp' '*.cu' '*.cuh' '*.c'
}

require() { have "$1" || die 3 "$1: it must be installed; got none on PATH; run: apt-get install $1"; }

check_format() {
  local files
  require clang-format
  cd "$root"
  mapfile -t files < <(sources)
  ((${#files[@]})) || die 3 "format: there must be sources to look at; git lists none in $root"
  clang-format --dry-run --Werror "${files[@]}" ||
    die 1 "format: every file must be as .clang-format has it; the lines above differ; run: clang-format -i FILE"
  say "format: ${#files[@]} files in order"
}

check_tidy() {
  require clang-tidy
  RMSNORM_PRESET=tidy RMSNORM_TARGETS='' "$root/scripts/build.sh"
  say "tidy: nothing to say"
}

main() {
  case ${1:-} in
    '') check_format ;;
    tidy) check_format && check_tidy ;;
    *) die 2 "arguments: only tidy is known; got $1" ;;
  esac
}

main "$@"
