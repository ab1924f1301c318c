# shellcheck shell=bash
# Shared by the scripts beside it: source it, do not run it.
# Everything here writes to stderr, so that stdout carries only what the program itself prints.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root

# The CUDA major version of the pinned libtorch: another one would put two CUDA runtimes into one program.
# shellcheck disable=SC2034 # for those that source this
readonly cuda_major=13

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# die CODE MESSAGE: 2 = wrong usage, 3 = a requirement is missing (the program's own exit codes).
die() {
  local code=$1
  shift
  say "$*"
  exit "$code"
}

have() { command -v "$1" >/dev/null 2>&1; }

has_gpu() { have nvidia-smi && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; }

# Every nvcc of PATH, then the customary place: a wrapper of another tool may come first and lead nowhere.
nvcc_candidates() {
  type -ap nvcc || true
  [[ ! -x /usr/local/cuda/bin/nvcc ]] || printf '/usr/local/cuda/bin/nvcc\n'
}

nvcc_release() { { "$1" --version 2>/dev/null || true; } | sed -n 's/.*release \([0-9.]*\).*/\1/p'; }

# Runs the set-up, then takes over what it decided.
load_setup() {
  "$root/scripts/setup.sh"
  # shellcheck source=/dev/null
  source "$root/build/setup.env"
  export RMSNORM_LIBTORCH RMSNORM_PRESET
  [[ -z ${CUDACXX:-} ]] || export CUDACXX
}
