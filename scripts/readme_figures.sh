#!/usr/bin/env bash
# Draws the README's figures from committed reports, each beside its report and marked with the report's checksum:
# FOLDER/NAME.svg from FOLDER/NAME.json. A figure is compared by that mark and not by its lines, which change with gnuplot.
# Usage: scripts/readme_figures.sh [--check]
# Exit: 0 every figure is (now) that of its report; 1 with --check: one is not; 2: unknown arguments; 3: a report or a tool is missing.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

readonly reports=(results/h200/benchmark results/h200/sweep results/cpu/benchmark)

mark_of() { printf '<!-- of %s, sha256 %s -->\n' "$(basename "$1")" "$(sha256sum "$1" | cut -d' ' -f1)"; }

draw() {
  local report=$1.json figure=$1.svg
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  cp "$report" "$scratch/benchmark.json"
  "$root/scripts/figures.d/benchmark.sh" "$scratch" "$scratch/figures" 2>"$scratch/log" || {
    cat "$scratch/log" >&2
    die 3 "$figure: its figure must be drawn; it was not, for the reason above"
  }
  { cat "$scratch/figures/benchmark.svg" && mark_of "$report"; } >"$scratch/figure.svg"
  mv "$scratch/figure.svg" "$figure"
  say "figure: $figure"
  rm -rf "$scratch"
}

check() {
  [[ $(tail -n 1 "$1.svg" 2>/dev/null) == "$(mark_of "$1.json")" ]] ||
    die 1 "$1.svg: it must be drawn from $1.json as it is now; it is not; run: scripts/readme_figures.sh"
}

main() {
  (($# == 0)) || [[ $# == 1 && $1 == --check ]] || die 2 "arguments: none or --check; got $*"
  cd "$root"
  local report
  for report in "${reports[@]}"; do
    [[ -r $report.json ]] || die 3 "$report.json: it must be there; it is not; scripts/gpu.sh or the benchmark writes it"
    if (($#)); then check "$report"; else draw "$report"; fi
  done
}

main "$@"
