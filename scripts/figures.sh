#!/usr/bin/env bash
# Draws figures/*.svg and figures/*.png from the reports in outputs/, with jq and gnuplot only:
#   training            loss of both paths by step, validation, and the error of predicting the mean
#   check-forward, check-backward, check-gamma   how much of the tolerance the cases use, by implementation and dtype
# Usage: scripts/figures.sh [OUTPUTS [FIGURES]]   (default: outputs figures, in the current directory)
# Exit: 0 every report that is there was drawn; 3 a tool is missing; 4 there was no report to draw.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

work=''
drawn=0

# What ran, for the title: "cuda:0, NVIDIA H200".
device_of() { jq -r '.environment | "\(.device), \(.device_name)"' "$1"; }

# text TEXT: as a gnuplot string, whatever a device or an implementation is called.
text() {
  local quoted=${1//\'/\'\'}
  printf "'%s'" "$quoted"
}

# draw NAME COMMANDS: both formats; each appears whole or not at all.
draw() {
  local name=$1 commands=$2 format
  local -A terminal=(
    [svg]="svg size 900,540 dynamic background rgb 'white' font 'sans-serif,14' noenhanced"
    [png]="pngcairo size 1350,810 background rgb 'white' font 'sans-serif,16' linewidth 1.4 noenhanced"
  )
  for format in svg png; do
    gnuplot <<<"set terminal ${terminal[$format]}
set output $(text "$work/$name.$format")
$commands"
    mv "$work/$name.$format" "$figures/$name.$format"
    printf '%s\n' "$figures/$name.$format"
  done
  drawn=$((drawn + 1))
}

# The loss curves lie on each other where the kernels are right: the wide pale line is the reference.
draw_training() {
  local report=$1 mean title batch low high ticks
  jq -r '.training.losses.reference | to_entries[] | "\(.key + 1) \(.value)"' "$report" >"$work/reference.dat"
  jq -r '.training.losses.kernel | to_entries[] | "\(.key + 1) \(.value)"' "$report" >"$work/kernel.dat"
  jq -r '.training.validation.kernel[] | "\(.step) \(.mse)"' "$report" >"$work/validation.dat"
  [[ -s $work/kernel.dat ]] || { say "$report: the kernel path has no losses yet; left out" && return; }
  mean=$(jq -r '.training.test_mse.mean // empty' "$report")
  # A log axis of its own would go to whole powers of ten and squeeze the curves.
  read -r low high ticks < <(jq -r '[.training.losses[][], .training.validation[][].mse | numbers] | (min * 0.8) as $low
    | (max * 1.6) as $high | [range(-6; 7) as $e | (2, 5) | . * pow(10; $e) | select(. > $low and . < $high)]
    | "\($low) \($high) \(map(tostring) | join(","))"' "$report")
  batch=$(jq -r '.config.train.batch' "$report")
  title="Training on $(device_of "$report"): reference and $(jq -r '.training.implementation' "$report")"
  draw training "
set title $(text "$title")
set xlabel 'step (batches of $batch examples)'
set ylabel 'mean squared error (dimensionless, log scale)'
set logscale y
set grid ytics xtics lt 1 lc rgb '#cccccc'
set key top right opaque
set format y '%.2g'
set mytics 10
set yrange [$low:$high]
set ytics add ($ticks)
plot ${mean:+$mean with lines dt 2 lw 1.5 lc rgb '#666666' title 'predicting the mean (test split)',} \\
  $(text "$work/reference.dat") with lines lw 6 lc rgb '#9ecae1' title 'reference, loss of the batch', \\
  $(text "$work/kernel.dat") with lines lw 1.5 lc rgb '#08306b' title 'kernel, loss of the batch', \\
  $(text "$work/validation.dat") with linespoints pt 7 ps 0.9 lw 1.5 lc rgb '#d94801' title 'kernel, validation split'"
}

# Implementations that round alike lie on each other: widths alternate so that both are seen.
# One rising line for each implementation and dtype: the share of its cases that use at most so much of the tolerance.
draw_check() {
  local report=$1 name=$2 lines='' series label file index=0 total
  while IFS= read -r series; do
    index=$((index + 1))
    file=$work/$name-$index.dat
    jq -r --argjson series "$series" '
      [.cases[] | select(.state != "skipped" and .implementation == $series[0] and .dtype == $series[1])
        | .used_of_tolerance | numbers | [., 1e-6] | max * 100] | sort | length as $n
      | to_entries[] | "\(.value) \((.key + 1) / $n * 100)"' "$report" >"$file"
    [[ -s $file ]] || continue
    total=$(wc -l <"$file")
    label=$(jq -r --argjson series "$series" -n '$series | join(", ")')
    lines+="${lines:+, }$(text "$file") with steps lw $((index % 2 ? 5 : 2)) lc $index title $(text "$label ($total cases)")"
  done < <(jq -c '[.cases[] | [.implementation, .dtype]] | unique | sort_by(.[1])[]' "$report")
  [[ -n $lines ]] || { say "$report: no case was compared; left out" && return; }
  draw "$name" "
set title $(text "$name on $(device_of "$report"): how much of the tolerance the cases use")
set xlabel 'largest error of a case, % of what its tolerance allows (log scale)'
set ylabel 'cases with at most that error (%)'
set logscale x
set yrange [0:105]
set format x '%g'
set grid ytics xtics lt 1 lc rgb '#cccccc'
set key top left opaque
set arrow from 100, graph 0 to 100, graph 1 nohead dt 2 lw 1.5 lc rgb '#cb181d'
set label 'limit' at 100, graph 0.03 right offset -0.5,0 textcolor rgb '#cb181d'
set xrange [*:200]
plot $lines"
}

main() {
  local outputs=${1:-outputs} check
  figures=${2:-figures}
  for tool in jq gnuplot; do
    have "$tool" || die 3 "$tool must be installed; it is not: apt-get install jq gnuplot-nox"
  done
  mkdir -p "$figures"
  # Beside their place, so that a finished picture only has to be renamed.
  work=$(mktemp -d "$figures/.drawing-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  if [[ -s $outputs/train-integration.json ]] && jq -e '.training.losses' "$outputs/train-integration.json" >/dev/null; then
    draw_training "$outputs/train-integration.json"
  fi
  for check in check-forward check-backward check-gamma; do
    [[ ! -s $outputs/$check.json ]] || draw_check "$outputs/$check.json" "$check"
  done
  # Figures of single commands: each script draws what it finds a report for, and fails where there is none.
  local script name
  for script in "$root"/scripts/figures.d/*.sh; do
    bash "$script" "$outputs" "$figures" >/dev/null 2>&1 || continue
    drawn=$((drawn + 1))
    name=$(basename "$script" .sh)
    printf '%s\n' "$figures/$name.svg"
  done
  ((drawn > 0)) || die 4 "$outputs: must hold the report of a training or a check; it holds none: run one of them first"
}

main "$@"
