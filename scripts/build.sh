#!/usr/bin/env bash
# Sets up, configures when what it depends on changed, builds.
# Usage: scripts/build.sh [TARGET...]   (default: everything; RMSNORM_TARGETS="A B" names targets too)
# It is quiet when there is nothing to do, and writes to stderr only.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# CMake reruns itself when its own files change; it cannot know of another libtorch, compiler or preset file.
fingerprint() { cat "$root/build/setup.env" "$root/CMakePresets.json"; }

# The architecture of the GPU that is here, as CMake names it; nothing where there is none, and the preset's then holds.
architecture_here() {
  [[ $RMSNORM_PRESET == cuda ]] && has_gpu || return 0
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. '
}

configure() {
  local dir=$root/build/$RMSNORM_PRESET want architecture flags=()
  architecture=$(architecture_here)
  [[ ! $architecture =~ ^[0-9]+$ ]] || flags=(-DRMSNORM_CUDA_ARCHITECTURES="$architecture")
  want=$(fingerprint && printf '%s' "$architecture")
  # build.ninja comes last in a configuration: without it, the one before broke off.
  [[ ! -e $dir/build.ninja || $want != "$(cat "$dir/.configured-for" 2>/dev/null)" ]] || return 0
  say "configuring preset $RMSNORM_PRESET"
  # A cache that remembers another libtorch would win over the new one.
  (cd "$root" && cmake --fresh --preset "$RMSNORM_PRESET" "${flags[@]}" >&2) ||
    die 3 "configure: preset $RMSNORM_PRESET must configure; cmake failed (its message is above); mend that and run this again"
  printf '%s\n' "$want" >"$dir/.configured-for"
}

# One compiler on the largest files takes about 1.5 GiB: more at once than memory holds is slower than fewer.
jobs_that_fit() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 1572864) }' /proc/meminfo)
  ((memory >= 1)) || memory=1
  printf '%s\n' "$((memory < cores ? memory : cores))"
}

build() {
  local flags=()
  (($# == 0)) || flags=(--target "$@")
  CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(jobs_that_fit)} \
    cmake --build "$root/build/$RMSNORM_PRESET" "${flags[@]}" 2>&1 |
    sed -u '/^ninja: no work to do\.$/d' >&2 ||
    die 3 "build: preset $RMSNORM_PRESET must build; it failed (the first error is above); mend that and run this again"
}

main() {
  local named=()
  read -ra named <<<"${RMSNORM_TARGETS:-}"
  load_setup
  configure
  build "${named[@]}" "$@"
}

main "$@"
