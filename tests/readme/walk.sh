#!/usr/bin/env bash
# Runs the commands of the README's walk in a folder of their own and compares what they print with what the README says,
# numbers and machine aside. Usage: walk.sh PROGRAM [--write]   --write puts the output into the README instead.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=$(realpath "$1")
mode=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$root/configs" "$work/configs"

# Where the README says scripts/run.sh, the program that is under test runs.
run_command() {
  local words
  read -ra words <<<"$1"
  case ${words[0]} in
    scripts/run.sh) (cd "$work" && "$program" "${words[@]:1}" 2>&1) ;;
    scripts/figures.sh) (cd "$work" && bash "$root/scripts/figures.sh" outputs figures 2>&1) ;;
    scripts/setup.sh | scripts/test.sh) ;; # they have run, or this would not
    *) printf 'walk: no such command: %s\n' "$1" && return 1 ;;
  esac
}

# What depends on the machine or the hour becomes #, and columns that it widens become one space.
stable() {
  sed -E '/^device: |^rmsnorm  |^libtorch |^CUDA |^driver |^memory |^threads |^device  /d;
    s/[0-9]+x[0-9]+-float[0-9]+/CASE/g; s/\bcuda:[0-9]+|\bcpu\b/DEVICE/g; s/[-+]?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?/#/g; s/#( ?%| us| ms| s)/#/g; s/ +/ /g; s/ $//'
}

walk() {
  local line inside=0 block=0 command='' status=0
  while IFS= read -r line || [[ -n $line ]]; do
    case $line in
      '<!-- walk -->') inside=1 ;;
      '<!-- /walk -->') inside=0 ;;
    esac
    if ((inside)) && [[ $line == '```console' ]]; then
      block=1
    elif ((block)) && [[ $line == '```' ]]; then
      block=0
    elif ((block)) && [[ $line != '$ '* ]]; then
      continue
    fi
    printf '%s\n' "$line"
    if ((block)) && [[ $line == '$ '* ]]; then
      command=${line#'$ '}
      run_command "$command" || { status=$? && printf 'walk: %s: exit %s\n' "$command" "$status" >&2; }
    fi
  done <"$root/README.md"
  return "$status"
}

walk >"$work/README.md"
if [[ $mode == --write ]]; then
  cp "$work/README.md" "$root/README.md"
elif ! diff <(stable <"$root/README.md") <(stable <"$work/README.md"); then
  printf 'walk: the README (<) must show what its commands print (>); run tests/readme/walk.sh PROGRAM --write and look at it\n' >&2
  exit 1
fi
