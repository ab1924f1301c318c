#!/usr/bin/env bash
# The benchmark as a figure, one panel for each pass. A report of many column counts becomes lines of time by columns, any
# other bars of the ratio to a copy of the same bytes.
# Usage: scripts/figures.d/benchmark.sh REPORTS FIGURES    reads REPORTS/benchmark.json, writes FIGURES/benchmark.svg
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

readonly sweep_from=20  # different column counts
readonly width_px=1080 panel_px=420

# Quoted for gnuplot, whatever an implementation or a device is called.
text() { printf "'%s'" "${1//\'/\'\'}"; }

# The first protocol of the report in the order in which they tell most about kernels.
protocol_of() {
  jq -r '[.rows[] | select(.median_us != null) | .protocol] as $has
    | ["cold", "graph", "calls", "cold_write"] | map(select(. as $p | $has | index($p))) | first // empty' "$1"
}

passes_of() { jq -r --arg p "$2" '[.rows[] | select(.protocol == $p and .median_us != null) | .pass] | unique | reverse[]' "$1"; }

# implementations_of REPORT PROTOCOL PASS: in the order of the report, without the empty function.
implementations_of() {
  jq -r --arg p "$2" --arg pass "$3" 'reduce (.rows[] | select(.protocol == $p and .pass == $pass and .median_us != null)
    | .implementation | select(. != "floor")) as $i ([]; if index($i) then . else . + [$i] end) | .[]' "$1"
}

# One line per case, one column per implementation: its ratio to the copy, or ? where it was not timed.
bars() {
  jq -r --arg p "$2" --arg pass "$3" '[.rows[] | select(.protocol == $p and .pass == $pass)] as $rows
    | (reduce ($rows[] | select(.median_us != null) | .implementation | select(. != "floor" and . != "copy")) as $i
        ([]; if index($i) then . else . + [$i] end)) as $names
    | (reduce ($rows[] | "\(.rows)x\(.cols)-\(.dtype)" + (if .layout != "contiguous" then "-\(.layout)" else "" end)
        + (if .gamma != "same" then "-gamma-\(.gamma)" else "" end)) as $c ([]; if index($c) then . else . + [$c] end))[]
      as $case
    | [$case] + [$names[] as $n | first(($rows[] | select(.implementation == $n and .ratio_to_floor != null
        and ("\(.rows)x\(.cols)-\(.dtype)" + (if .layout != "contiguous" then "-\(.layout)" else "" end)
        + (if .gamma != "same" then "-gamma-\(.gamma)" else "" end)) == $case) | .ratio_to_floor), "?") | tostring]
    | join(" ")' "$1"
}

lines() {
  jq -r --arg p "$2" --arg pass "$3" --arg i "$4" '[.rows[] | select(.protocol == $p and .pass == $pass
    and .implementation == $i and .median_us != null) | [.cols, .median_us]] | sort[] | map(tostring) | join(" ")' "$1"
}

bar_panel() {
  local report=$1 protocol=$2 pass=$3 file=$scratch/$3 plot='' name column=2
  bars "$report" "$protocol" "$pass" >"$file"
  while IFS= read -r name; do
    [[ $name != copy ]] || continue
    plot+="${plot:+, }$(text "$file") using $column:xtic(1) title $(text "$name")"
    column=$((column + 1))
  done < <(implementations_of "$report" "$protocol" "$pass")
  [[ -n $plot ]] || return 0
  printf '%s\n' "set title $(text "$pass, protocol $protocol")" \
    "set ylabel 'time / copy of the same bytes (log)'" \
    "set style data histograms" "set style histogram clustered gap 1.5" "set style fill solid 0.9 border -1" \
    "set rmargin 16" "set xtics rotate by -25 left scale 0" "set logscale y 2" "set yrange [0.5:*]" "set grid ytics" \
    "set datafile missing '?'" "plot $plot, 1 with lines dt 2 lc rgb '#333333' title 'copy'"
}

line_panel() {
  local report=$1 protocol=$2 pass=$3 plot='' name file index=0
  while IFS= read -r name; do
    index=$((index + 1))
    file=$scratch/$pass-$index
    lines "$report" "$protocol" "$pass" "$name" >"$file"
    plot+="${plot:+, }$(text "$file") with linespoints pt 7 ps 0.4 lw 1.5 title $(text "$name")"
  done < <(implementations_of "$report" "$protocol" "$pass")
  printf '%s\n' "set title $(text "$pass, protocol $protocol")" "set xlabel 'columns (log scale)'" \
    "set ylabel 'time (us, log scale)'" "set logscale xy" "set grid xtics ytics" "plot $plot"
}

draw() {
  local report=$1 figure=$2 protocol columns pass panel=bar_panel
  local -a passes
  protocol=$(protocol_of "$report")
  [[ -n $protocol ]] || die 4 "$report: it must hold times; nothing in it was timed"
  mapfile -t passes < <(passes_of "$report" "$protocol")
  columns=$(jq '[.rows[].cols] | unique | length' "$report")
  ((columns < sweep_from)) || panel=line_panel
  {
    printf '%s\n' "set terminal svg size $width_px,$((panel_px * ${#passes[@]})) dynamic font 'sans-serif,12' background rgb 'white' noenhanced" \
      "set output $(text "$scratch/benchmark.svg")" "set key outside top center horizontal" \
      "set multiplot layout ${#passes[@]},1 title $(text "$(jq -r '.environment | "\(.device_name), \(.device)"' "$report")")"
    for pass in "${passes[@]}"; do
      "$panel" "$report" "$protocol" "$pass"
    done
    printf 'unset multiplot\n'
  } >"$scratch/commands"
  gnuplot "$scratch/commands"
  mv "$scratch/benchmark.svg" "$figure"
  say "figure: $figure"
}

main() {
  (($# == 2)) || die 2 "arguments: REPORTS and FIGURES must be given; got $# arguments; run: scripts/figures.d/benchmark.sh outputs figures"
  local report=$1/benchmark.json
  if ! have jq || ! have gnuplot; then
    die 3 "jq and gnuplot: both must be installed; run: apt-get install jq gnuplot-nox"
  fi
  [[ -r $report ]] || die 3 "$report: it must exist; run: scripts/run.sh benchmark --config configs/benchmark.yaml"
  mkdir -p "$2"
  scratch=$(mktemp -d "$2/.drawing-XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  draw "$report" "$2/benchmark.svg"
}

main "$@"
