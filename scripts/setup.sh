#!/usr/bin/env bash
# Makes this machine ready to build: packages, libtorch, and the decision between `cuda` and `cpu`.
# Usage: scripts/setup.sh [--dry-run]
#   LIBTORCH=DIR        use this libtorch (DIR or DIR/torch holds share/cmake/Torch) instead of the pinned one
#   RMSNORM_PRESET=NAME build this preset instead of the one that the machine suggests
#   XDG_CACHE_HOME      parent of the folder that keeps libtorch (default ~/.cache)
# It keeps no record of an earlier run: each call looks at the facts, which costs less than trusting a stale note.
# Result: build/setup.env, shell assignments of RMSNORM_LIBTORCH, RMSNORM_PRESET and CUDACXX.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/libtorch.sh
source "$root/scripts/libtorch.sh"

readonly packages=(g++ cmake ninja-build ccache unzip python3 python3-pip ca-certificates git
  libyaml-cpp-dev libfmt-dev libcli11-dev nlohmann-json3-dev catch2 jq gnuplot-nox)

dry_run=false

missing_packages() {
  local installed package
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
  for package in "${packages[@]}"; do
    grep -qxF "$package installed" <<<"$installed" || printf '%s\n' "$package"
  done
}

# Without a terminal a password prompt would hang, so only a sudo that needs none is used there.
root_prefix() {
  if ((EUID == 0)); then
    return 0
  elif have sudo && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then
    printf 'sudo\n'
  else
    return 1
  fi
}

install_packages() {
  local missing=("$@") prefix
  local line="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  prefix=$(root_prefix) ||
    die 3 "packages: these must be installed and this user may not do it; as root, run: $line"
  say "packages: installing ${missing[*]}"
  # shellcheck disable=SC2086 # an empty prefix must vanish
  $prefix env DEBIAN_FRONTEND=noninteractive sh -c \
    'apt-get update -qq && apt-get install -y -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 --no-install-recommends "$@"' sh "${missing[@]}" \
    </dev/null >&2 || die 3 "packages: apt-get failed (its message is above); mend it, or run: $line"
}

ensure_packages() {
  if ! have dpkg-query || ! have apt-get; then
    say "packages: this is no Debian or Ubuntu, so nothing was checked; needed are: ${packages[*]}"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  if $dry_run; then
    say "packages: would install ${missing[*]}"
  else
    install_packages "${missing[@]}"
  fi
}

# Sets nvcc (empty: none usable) and found (what was seen instead).
find_nvcc() {
  local candidate release
  nvcc=
  found="no nvcc on PATH or in /usr/local/cuda/bin"
  while read -r candidate; do
    release=$(nvcc_release "$candidate")
    if [[ ${release%%.*} == "$cuda_major" ]]; then
      nvcc=$candidate
      return
    fi
    [[ -z $release ]] || found="$candidate of release $release"
  done < <(nvcc_candidates)
}

decide_preset() {
  find_nvcc
  preset=${RMSNORM_PRESET:-$([[ -n $nvcc ]] && echo cuda || echo cpu)}
  [[ -z $nvcc ]] || return 0
  local must="nvcc must be release $cuda_major.x; got $found; install the CUDA $cuda_major toolkit"
  [[ $preset != cuda ]] || die 3 "preset cuda: $must, or unset RMSNORM_PRESET"
  say "=== CPU BUILD: the CUDA kernels are NOT compiled ==="
  say "=== for them, $must and run this again ==="
}

# A libtorch without CUDA cannot carry the CUDA kernels, whatever the toolkit.
match_preset_to_libtorch() {
  [[ $preset == cuda && -e $libtorch/lib && ! -e $libtorch/lib/libtorch_cuda.so ]] || return 0
  [[ -z ${RMSNORM_PRESET:-} ]] ||
    die 3 "preset cuda: libtorch must be a CUDA build; $libtorch has no lib/libtorch_cuda.so; unset LIBTORCH or RMSNORM_PRESET"
  preset=cpu
  say "=== CPU BUILD: $libtorch is a libtorch without CUDA; unset LIBTORCH to use the pinned one ==="
}

# Renamed into place, and left alone when nothing changed, so that its date tells when the decision did.
write_env() {
  local file=$root/build/setup.env
  mkdir -p "$root/build"
  {
    printf 'RMSNORM_LIBTORCH=%q\n' "$libtorch"
    printf 'RMSNORM_PRESET=%q\n' "$preset"
    printf 'CUDACXX=%q\n' "$nvcc"
  } >"$file.$$"
  if cmp -s "$file.$$" "$file"; then
    rm "$file.$$"
  else
    mv "$file.$$" "$file"
  fi
}

main() {
  case ${1:-} in
    '') ;;
    --dry-run) dry_run=true ;;
    *) die 2 "arguments: only --dry-run is known; got $1" ;;
  esac
  ensure_packages
  decide_preset
  ensure_libtorch
  match_preset_to_libtorch
  $dry_run || write_env
}

main "$@"
