#!/usr/bin/env bash
# The kill matrix as a figure: mutants down, checks across; a filled cell names the smallest case in which the check failed
# the mutant, a dark one is of the check that must.
# Usage: scripts/figures.d/mutants.sh REPORTS FIGURES    reads REPORTS/exercise.json, writes FIGURES/mutants.svg
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

readonly checks='["check-forward", "check-backward", "check-gamma", "autograd"]'
readonly row_px=14 head_px=90 width_px=1080

# One line per mutant and check: column, row, 0 not killed, 1 killed, 2 killed by the check that must find it; the case.
cells() {
  jq -r --argjson checks "$checks" '.mutants | to_entries[] | .key as $row | .value as $mutant | $checks | to_entries[]
    | .value as $check
    | [.key, $row,
       (if $mutant.killed_by | index($check) | not then 0 elif $mutant.expected == $check then 2 else 1 end),
       ($mutant.checks[$check].case // "-")]
    | join(" ")' "$1"
}

# gnuplot's own lists of labels: "name" position, ...
# A mutant of tuned is named so; reports from before there were any have no such.
labels() {
  jq -r '[.mutants | to_entries[] | "\"\(if .value.implementation == "tuned" then "tuned/" else "" end)\(.value.name)\" \(.key)"]
    | join(", ")' "$1"
}
check_labels() { jq -rn --argjson checks "$checks" '[$checks | to_entries[] | "\"\(.value)\" \(.key)"] | join(", ")'; }

main() {
  (($# == 2)) || die 2 "arguments: REPORTS and FIGURES must be given; got $# arguments; run: scripts/figures.d/mutants.sh outputs figures"
  local report=$1/exercise.json figure=$2/mutants.svg mutants killed device
  if ! have jq || ! have gnuplot; then
    die 3 "jq and gnuplot: both must be installed; run: apt-get install jq gnuplot-nox"
  fi
  [[ -r $report ]] || die 3 "$report: it must exist; run: scripts/run.sh exercise --mutants all --config configs/mutants.yaml"
  mutants=$(jq '.mutants // [] | length' "$report")
  ((mutants > 0)) || die 3 "$report: it must be of exercise --mutants; got one without mutants; run that first"
  killed=$(jq '[.mutants[] | select(.killed)] | length' "$report")
  device=$(jq -r '.environment.device_name' "$report")
  mkdir -p "$2"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  cells "$report" >"$scratch/cells"
  gnuplot <<PLOT
set terminal svg size $width_px,$((head_px + mutants * row_px)) font "sans,10" background rgb "white" noenhanced
set output "$scratch/mutants.svg"
set title "$killed of $mutants mutants killed on $device" offset 0,0.4
set xrange [-0.5:3.5]
set yrange [$mutants - 0.5:-0.5]
set x2range [-0.5:3.5]
unset xtics
set x2tics ($(check_labels)) scale 0
set ytics ($(labels "$report")) scale 0
set cbrange [0:2]
set palette defined (0 "#eeeeee", 1 "#9ecae1", 2 "#08519c")
unset colorbox
unset key
plot "$scratch/cells" using 1:2:3 axes x2y1 with image pixels, \
  "" using 1:2:(stringcolumn(4)):(\$3 == 2 ? 0xffffff : 0x333333) axes x2y1 with labels font "sans,8" textcolor rgb variable
PLOT
  mv "$scratch/mutants.svg" "$figure"
  say "figure: $figure"
}

main "$@"
