#!/usr/bin/env bash
# Runs on a GPU what only a GPU can show, and writes reports. Builds nothing and needs no network.
# Usage: scripts/gpu.sh OUTDIR [STEP]...   steps: tests checks mutants train sanitizer (default: all, in this order), full, huge, benchmark, sweep
#   RMSNORM_BIN=DIR           holds rmsnorm, rmsnorm_gpu_tests and rmsnorm_bench_gpu_tests (default build/cuda/bin)
#   RMSNORM_LIBTORCH=DIR      holds lib/libtorch.so; else LIBTORCH, else the torch of python3, else the binaries' own RPATH
#   RMSNORM_COMMIT=ID         when the tree was copied here without its git history
#   RMSNORM_STEP_TIMEOUT=SEC  per command (default 300): one that hangs must not take the others' time
#   RMSNORM_SANITIZERS=TOOLS   of the step sanitizer (default "memcheck racecheck initcheck synccheck")
#   RMSNORM_INITCHECK_FLAGS   e.g. "--kernel-regex kns=7rmsnorm"; not the default, since a kernel left out of the
#                             instrumentation may also have its writes left out, which looks like reading garbage
# OUTDIR gets gpu-summary.json, gpu.log and one JSON report per subcommand: 8 files, none in a folder below.
# A failed command does not stop the others; exit 1 if any failed, 3 if something needed is missing.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

readonly default_steps=(tests checks mutants train sanitizer)
readonly sanitizer_exit=9
# Relative to the root: reports echo their command line, which must read the same on every machine.
readonly reports=outputs/gpu-run

names=() codes=() seconds=() errors=()

# ---- the steps: a new one is one more function step_NAME ----

step_tests() {
  record gpu-tests "$bin/rmsnorm_gpu_tests" -w NoTests
  record bench-gpu-tests "$bin/rmsnorm_bench_gpu_tests" -w NoTests
}

step_checks() {
  local operation
  record check-environment "$bin/rmsnorm" check-environment --config configs/minimum.yaml --device cuda \
    --out "$reports"
  record reference "$bin/rmsnorm" reference --config configs/minimum.yaml --device cuda --out "$reports"
  for operation in forward backward gamma; do
    record "check-$operation" "$bin/rmsnorm" "check-$operation" --config configs/minimum.yaml --device cuda \
      --out "$reports"
  done
}

step_mutants() {
  record exercise-mutants "$bin/rmsnorm" exercise --mutants all --config configs/mutants.yaml --device cuda \
    --out "$reports"
}

# The kernels in learning, and the same run killed half-way and resumed: equal to the last bit.
step_train() {
  local config=(--config configs/minimum.yaml --device cuda --out "$reports")
  record train "$bin/rmsnorm" train-integration "${config[@]}" --artifacts "$scratch/whole"
  record train-half "$bin/rmsnorm" train-integration --config configs/minimum.yaml --device cuda --steps 50 \
    --out "$scratch/half-report" --artifacts "$scratch/half"
  record train-resumed "$bin/rmsnorm" train-integration --config configs/minimum.yaml --device cuda --resume \
    --out "$scratch/resumed-report" --artifacts "$scratch/half"
  record losses-equal cmp <(losses "$reports/train-integration.json") \
    <(losses "$scratch/resumed-report/train-integration.json")
}

# The losses of a report, one line; fails the comparison when there are none.
losses() { tr -d ' \n' <"$1" | grep -o '"losses":{[^}]*}' || printf 'no losses in %s\n' "$1"; }

# The whole contract, and sizes that 32-bit offsets get wrong. Reports NAME-full and NAME-huge, beside those of the checks.
step_full() { check_config full; }
step_huge() {
  check_config huge
  # libtorch 2.11 wraps its offsets at 2^32 elements; a check that lets that pass proves nothing.
  local operation
  for operation in forward backward; do
    record "aten-huge-$operation" "$bin/rmsnorm" "check-$operation" --config configs/huge.yaml --device cuda \
      --implementation aten --case 1048578x4096-bfloat16 --out "$scratch/aten"
    judge_failure
    [[ ! -e $scratch/aten/check-$operation.json ]] ||
      cp "$scratch/aten/check-$operation.json" "$reports/check-$operation-huge-aten.json"
  done
}

check_config() {
  local operation
  for operation in forward backward gamma; do
    record "check-$operation-$1" "$bin/rmsnorm" "check-$operation" --config "configs/$1.yaml" --device cuda \
      --out "$scratch/$1"
    [[ ! -e $scratch/$1/check-$operation.json ]] ||
      cp "$scratch/$1/check-$operation.json" "$reports/check-$operation-$1.json"
  done
}

# Not among the default steps: minutes of one GPU, which nothing else may use meanwhile.
step_benchmark() {
  RMSNORM_STEP_TIMEOUT=${RMSNORM_STEP_TIMEOUT:-540} record benchmark "$bin/rmsnorm" benchmark \
    --config configs/benchmark.yaml --device cuda --out "$reports"
}

# No cliff between neighbouring sizes; the report goes beside the benchmark's.
step_sweep() {
  record sweep "$bin/rmsnorm" benchmark --config configs/sweep.yaml --device cuda --out "$scratch/sweep"
  [[ ! -e $scratch/sweep/benchmark.json ]] || cp "$scratch/sweep/benchmark.json" "$reports/sweep.json"
}

step_sanitizer() {
  local tool sanitizer cases flags=() tools
  read -ra tools <<<"${RMSNORM_SANITIZERS:-memcheck racecheck initcheck synccheck}"
  sanitizer=$(find_sanitizer)
  # libtorch's pool hands out pieces of large allocations, past whose ends memcheck sees nothing wrong.
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1
  for tool in "${tools[@]}"; do
    flags=() cases='[sanitizer],[unequal]'
    # A kernel's shared memory is its own; libtorch's sum of long rows is reported for its.
    [[ $tool != racecheck ]] || flags=(--kernel-regex kns=7rmsnorm) cases='[sanitizer]'
    [[ $tool != initcheck ]] || read -ra flags <<<"${RMSNORM_INITCHECK_FLAGS:-}"
    record "$tool" "$sanitizer" --tool "$tool" --error-exitcode "$sanitizer_exit" "${flags[@]}" \
      "$bin/rmsnorm_gpu_tests" "$cases" -w NoTests
    judge_sanitizer
  done
  unset PYTORCH_NO_CUDA_MEMORY_CACHING
}

# ---- what they are made of ----

find_sanitizer() {
  local candidate
  for candidate in compute-sanitizer /usr/local/cuda/bin/compute-sanitizer; do
    have "$candidate" && printf '%s\n' "$candidate" && return
  done
  die 3 "sanitizer: compute-sanitizer must be on PATH or in /usr/local/cuda/bin; got neither; install the CUDA toolkit's, or leave this step out"
}

# record NAME COMMAND...: runs it, keeps its output, exit code and time.
record() {
  local name=$1 begin=${EPOCHREALTIME/./} code=0
  shift
  say "$name"
  timeout --kill-after=10 "${RMSNORM_STEP_TIMEOUT:-300}" "$@" >"$scratch/last.log" 2>&1 </dev/null || code=$?
  names+=("$name") codes+=("$code") errors+=(null)
  seconds+=("$(awk -v us=$((${EPOCHREALTIME/./} - begin)) 'BEGIN { printf "%.1f", us / 1e6 }')")
  {
    printf '##### %s: exit %s\n##### %s\n' "$name" "$code" "$*"
    cat "$scratch/last.log"
  } >>"$scratch/gpu.log"
  ((code == 0)) || tail -n 15 "$scratch/last.log" >&2
}

# The tool's own count, for the record; a run without one proved nothing, whatever its exit code.
judge_sanitizer() {
  local count
  count=$(sed -n 's/^=* *ERROR SUMMARY: \([0-9]*\) error.*/\1/p; s/^=* *RACECHECK SUMMARY: \([0-9]*\) hazard.*/\1/p' \
    "$scratch/last.log" | tail -n 1)
  errors[-1]=${count:-null}
  [[ -n $count && $count == 0 ]] || { ((codes[-1] != 0)) || codes[-1]=$sanitizer_exit; }
}

# The last command must have found its subject wrong: exit 1, and nothing else.
judge_failure() {
  if ((codes[-1] == 1)); then codes[-1]=0; elif ((codes[-1] == 0)); then codes[-1]=1; fi
}

python_torch() {
  have python3 || return 0
  python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")' \
    2>/dev/null || true
}

find_libtorch() {
  local dir
  for dir in "${RMSNORM_LIBTORCH:-}" "${LIBTORCH:-}" "${LIBTORCH:+$LIBTORCH/torch}" "$(python_torch)"; do
    [[ -z $dir || ! -e $dir/lib/libtorch.so ]] || { printf '%s\n' "$dir" && return; }
  done
}

use_libtorch() {
  local libtorch dir path
  libtorch=$(find_libtorch)
  if [[ -z $libtorch ]]; then
    say "libtorch: none given and python3 has none; relying on the binaries' own RPATH"
    return
  fi
  path=$libtorch/lib
  for dir in "$libtorch"/../nvidia/*/lib; do
    [[ ! -d $dir ]] || path+=:$dir
  done
  export LD_LIBRARY_PATH=$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# Before the first step: with a library missing, each of them would fail for the same uninteresting reason.
require_runnable() {
  local binary
  for binary in rmsnorm rmsnorm_gpu_tests; do
    [[ -x $bin/$binary ]] ||
      die 3 "RMSNORM_BIN: the folder must hold $binary; got $bin; build preset cuda, or carry the binaries and set RMSNORM_BIN"
  done
  "$bin/rmsnorm" --version >"$scratch/gpu.log" 2>&1 ||
    die 3 "rmsnorm: it must start here; got: $(tail -n 1 "$scratch/gpu.log"); set RMSNORM_LIBTORCH to a libtorch 2.11.0 for CUDA $cuda_major"
}

card() { nvidia-smi --query-gpu="$1" --format=csv,noheader | head -n 1; }

commit() {
  local id changed
  id=${RMSNORM_COMMIT:-$(git rev-parse --quiet --verify HEAD 2>/dev/null || true)}
  [[ -n $id ]] || { printf 'unknown\n' && return; }
  changed=$([[ -n ${RMSNORM_COMMIT:-} ]] || git status --porcelain --untracked-files=no 2>/dev/null || true)
  printf '%s%s\n' "$id" "${changed:+ (changed)}"
}

# Our own words and numbers only, but for a card's name: nothing that JSON would want escaped.
write_summary() {
  local i separator=
  {
    printf '{\n  "schema": 1,\n  "commit": "%s",\n  "card": "%s",\n  "driver": "%s",\n  "date": "%s",\n  "steps": [' \
      "$(commit)" "$(card name)" "$(card driver_version)" "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
    for i in "${!names[@]}"; do
      printf '%s\n    {"name": "%s", "exit_code": %s, "seconds": %s, "sanitizer_errors": %s}' \
        "$separator" "${names[i]}" "${codes[i]}" "${seconds[i]}" "${errors[i]}"
      separator=,
    done
    printf '\n  ],\n  "verdict": "%s"\n}\n' "$(verdict)"
  } >"$scratch/gpu-summary.json"
}

verdict() {
  local code
  ((${#codes[@]})) || { printf 'failed\n' && return; }
  for code in "${codes[@]}"; do
    ((code == 0)) || { printf 'failed\n' && return; }
  done
  printf 'passed\n'
}

print_table() {
  local i
  printf '%-20s %5s %9s %10s\n' step exit seconds errors
  for i in "${!names[@]}"; do
    printf '%-20s %5s %9s %10s\n' "${names[i]}" "${codes[i]}" "${seconds[i]}" "${errors[i]/null/-}"
  done
  printf '%s: %s\n' "$(verdict)" "$(card name)"
}

deliver() {
  cp "$scratch/gpu.log" "$scratch/gpu-summary.json" "$out/"
  local report
  for report in "$reports"/*.{json,md}; do
    [[ ! -e $report ]] || cp "$report" "$out/"
  done
}

require_steps() {
  local step
  for step in "$@"; do
    declare -F "step_$step" >/dev/null || die 2 "steps: known are ${default_steps[*]}; got $step"
  done
}

prepare() {
  has_gpu || die 3 "GPU: nvidia-smi -L must list one; got none here; run this on a machine with an NVIDIA GPU"
  mkdir -p "$1" || die 3 "OUTDIR: it must be a folder that can be written; got $1; name another"
  out=$(cd "$1" && pwd)
  [[ $out != "$root/$reports" ]] || die 2 "OUTDIR: it must not be $reports, which is this script's own; name another"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  cd "$root"
  bin=${RMSNORM_BIN:-build/cuda/bin}
  use_libtorch
  require_runnable
  # Reports of an earlier run must not pass for this one's.
  rm -rf "$reports"
  mkdir -p "$reports"
}

main() {
  (($# >= 1)) || die 2 "arguments: OUTDIR must be given; got none; run: scripts/gpu.sh OUTDIR [STEP]..."
  local target=$1 step
  shift
  (($#)) || set -- "${default_steps[@]}"
  require_steps "$@"
  prepare "$target"
  for step in "$@"; do
    "step_$step"
  done
  write_summary
  deliver
  print_table
  [[ $(verdict) == passed ]]
}

main "$@"
