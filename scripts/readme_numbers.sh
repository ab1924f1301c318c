#!/usr/bin/env bash
# Writes the README's tables of numbers from committed reports, between the lines
#   <!-- numbers:NAME -->   and   <!-- /numbers -->
# NAME is FOLDER-PROTOCOL: the rows of that protocol (calls, cold, cold_write, graph) in results/FOLDER/benchmark.json.
# Usage: scripts/readme_numbers.sh [--check] [README]   (default: README.md of the project)
# Exit: 0 the README is (now) what the reports say; 1 with --check: it is not; 2, 3: a marker or a report is wrong.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

readonly marker='^<!-- numbers:([A-Za-z0-9._]+)-(calls|cold_write|cold|graph) -->$'
readonly end_marker='<!-- /numbers -->'

# A cell is the median and, but for the copy, its ratio to the copy; the state of a row that was not timed or believed.
table() {
  jq -er --arg protocol "$2" '
    def digits($n): (. * pow(10; $n) | round) as $x | ($x / pow(10; $n) | floor | tostring)
      + (if $n > 0 then "." + (($x % pow(10; $n)) | tostring | ("0" * ($n - length) // "") + .) else "" end);
    def micros: if . < 10 then digits(2) elif . < 1000 then digits(1) else digits(0) end;
    def cell: if . == null then "-" elif .median_us == null then .state
      else (.median_us | micros)
        + (if .implementation != "copy" and .implementation != "floor" and .ratio_to_floor != null then " (\(.ratio_to_floor | digits(2)))" else "" end)
        + (if .state != "passed" then " \(.state)" else "" end) end;
    def case: "\(.rows) x \(.cols) \(.dtype)" + (if .gamma == "same" then "" else ", gamma \(.gamma)" end)
      + (if .layout == "contiguous" then "" else ", \(.layout)" end);
    def in_order: reduce .[] as $x ([]; if index([$x]) then . else . + [$x] end);
    [.rows[] | select(.protocol == $protocol)] as $rows
    | if $rows == [] then error("no rows of protocol \($protocol)") else . end
    | ([$rows[].implementation] | in_order) as $names
    | (.environment | .device_name + (if .driver == "" then ", \(.threads) threads" else ", driver \(.driver)" end)
        + ", libtorch \(.libtorch)") as $machine
    | "| case | pass | \($names | join(" | ")) |",
      "|---|---|\($names | map("--:|") | join(""))",
      ([$rows[] | [case, .pass]] | in_order[] as $line
        | "| \($line[0]) | \($line[1]) | "
          + ($names | map(. as $name | first($rows[] | select(.implementation == $name and [case, .pass] == $line)) // null
            | cell) | join(" | ")) + " |"),
      "",
      "Protocol `\($protocol)`, medians in us of \([$rows[].samples] | max) samples, in brackets the ratio to `copy`. "
        + "\($machine); commit \(.tool.git)\(if .tool.dirty then " (modified)" else "" end)."' "$1"
}

generate() {
  local readme=$1 line name protocol report inside=0
  while IFS= read -r line || [[ -n $line ]]; do
    if ((inside)) && [[ $line != "$end_marker" ]]; then
      [[ $line != '<!-- numbers:'* ]] || die 2 "$readme: a $end_marker must come before $line; it does not"
      continue
    fi
    inside=0
    printf '%s\n' "$line"
    if [[ $line =~ $marker ]]; then
      name=${BASH_REMATCH[1]} protocol=${BASH_REMATCH[2]}
      report=$root/results/$name/benchmark.json
      [[ -r $report ]] || die 3 "$readme: $line needs $report; it is not there"
      table "$report" "$protocol" || die 3 "$report: must have rows of protocol $protocol; it has none"
      inside=1
    elif [[ $line == '<!-- numbers:'* ]]; then
      die 2 "$readme: a marker must be <!-- numbers:FOLDER-PROTOCOL -->; got $line"
    fi
  done <"$readme"
  ((!inside)) || die 2 "$readme: $end_marker must follow the last marker; it does not"
}

main() {
  local check=0 readme=$root/README.md
  if [[ ${1:-} == --check ]]; then
    check=1
    shift
  fi
  (($# <= 1)) || die 2 "arguments: at most --check and one README; got $*"
  [[ $# == 0 ]] || readme=$1
  have jq || die 3 "jq: it must be installed; run: apt-get install jq"
  [[ -r $readme ]] || die 3 "$readme: it must exist; it does not"
  scratch=$(mktemp "$readme.XXXXXX")
  trap 'rm -f "$scratch"' EXIT
  generate "$readme" >"$scratch"
  if ((check)); then
    diff -u "$readme" "$scratch" >&2 ||
      die 1 "$readme: its numbers must be those of the reports; the lines above differ; run: scripts/readme_numbers.sh"
    return
  fi
  cat "$scratch" >"$readme"
}

main "$@"
