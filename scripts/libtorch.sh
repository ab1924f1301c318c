# shellcheck shell=bash disable=SC2154 # its inputs are set by the script that sources it
# Sourced by setup.sh: finds or fetches libtorch and the CUDA libraries that this machine lacks.
# In: nvcc, dry_run, cuda_major. Out: libtorch, the folder that holds share/cmake/Torch.

# One fixed wheel whatever Python the machine has: pip only downloads it, and nothing here runs Python afterwards.
readonly torch_wheel='torch 2.11.0 7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a'

# soname, project, version, SHA-256. The versions are those that the torch wheel's METADATA asks for, directly or
# through cuda-toolkit==13.0.2.
readonly cuda_wheels='
libcublas.so.13       nvidia-cublas          13.1.0.3   ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171
libcublasLt.so.13     nvidia-cublas          13.1.0.3   ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171
libcudart.so.13       nvidia-cuda-runtime    13.0.96    7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
libcufft.so.12        nvidia-cufft           12.0.0.61  6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3
libcufile.so.0        nvidia-cufile          1.15.1.6   08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44
libcupti.so.13        nvidia-cuda-cupti      13.0.85    4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8
libcurand.so.10       nvidia-curand          10.4.0.35  1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc
libcusolver.so.12     nvidia-cusolver        12.0.4.66  0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112
libcusparse.so.12     nvidia-cusparse        12.6.3.3   2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b
libcusparseLt.so.0    nvidia-cusparselt-cu13 0.8.0      25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd
libcudnn.so.9         nvidia-cudnn-cu13      9.19.0.56  d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf
libnccl.so.2          nvidia-nccl-cu13       2.28.9     e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42
libnvJitLink.so.13    nvidia-nvjitlink       13.0.88    13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b
libnvrtc.so.13        nvidia-cuda-nvrtc      13.0.88    ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575
libnvshmem_host.so.3  nvidia-nvshmem-cu13    3.4.5      290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80
'

cache=${XDG_CACHE_HOME:-$HOME/.cache}/rmsnorm
# The wheel's RPATH looks for its CUDA libraries in ../../nvidia/*/lib, so `torch` and `nvidia` lie side by side.
home=$cache/libtorch-2.11.0-cu130
stage=$cache/staging

toolkit_libs() {
  [[ -n $nvcc ]] || return 0
  local top dir
  top=$(cd "$(dirname "$(readlink -f "$nvcc")")/.." && pwd)
  for dir in "$top/targets/x86_64-linux/lib" "$top/lib64" "$top/lib"; do
    [[ ! -e $dir/libcudart.so.$cuda_major ]] || { printf '%s\n' "$dir" && return; }
  done
}

# What the build links, cmake/torch.cmake decides it: libtorch_cuda too where there is one. A CPU build that linked only
# libtorch_cpu and libc10 would need megabytes of CUDA libraries on a machine without a toolkit, not gigabytes.
readonly cpu_build_links_cuda=false

linked_libraries() {
  local lib=$1/lib
  if [[ -e $lib/libtorch_cuda.so && ( -n $nvcc || $cpu_build_links_cuda == true ) ]]; then
    printf '%s\n' "$lib/libtorch_cuda_linalg.so" "$lib/libcaffe2_nvrtc.so"
  else
    printf '%s\n' "$lib/libtorch_cpu.so"
  fi
}

# LD_LIBRARY_PATH is set aside: what only it finds is lost in the next shell. libcuda belongs to the driver, which a
# machine without a GPU rightly lacks.
missing_sonames() {
  local roots
  mapfile -t roots < <(linked_libraries "$1")
  env -u LD_LIBRARY_PATH ldd "${roots[@]}" 2>/dev/null |
    awk '/=> not found/ && $1 != "libcuda.so.1" && !seen[$1]++ { print $1 }'
}

wheel_of() { awk -v soname="$1" '$1 == soname { print $2, $3, $4 }' <<<"$cuda_wheels"; }

pip() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -m pip --version >/dev/null 2>&1; then
      PIP_REQUIRE_VIRTUALENV=0 TMPDIR=$stage "$python" -m pip --disable-pip-version-check "$@"
      return
    fi
  done
  die 3 "libtorch: pip must be there to download it; got no python3 with pip; install python3-pip"
}

# pip takes a platform tag literally, and the wheels were tagged with many.
platform_flags() {
  printf -- '--platform=manylinux_2_%d_x86_64\n' {28..17}
  printf -- '--platform=manylinux2014_x86_64\n'
}

# download PROJECT VERSION SHA256: prints the wheel's path. pip checks the sum, also of a file from an earlier attempt.
download() {
  local project=$1 version=$2 sum=$3 dir=$cache/downloads/$1-$2 flags bar=off
  mapfile -t flags < <(platform_flags)
  [[ ! -t 2 ]] || bar=on
  mkdir -p "$dir"
  printf '%s==%s --hash=sha256:%s\n' "$project" "$version" "$sum" >"$stage/requirement.txt"
  say "libtorch: downloading $project $version"
  pip download --quiet --progress-bar "$bar" --no-cache-dir --no-deps --only-binary=:all: --require-hashes \
    --implementation cp --python-version 3.11 "${flags[@]}" --dest "$dir" --requirement "$stage/requirement.txt" >&2 ||
    die 3 "libtorch: $project $version must come from the package index with SHA-256 $sum; pip failed (its message is above); mend the network and run this again, or set LIBTORCH=DIR"
  printf '%s\n' "$dir"/*.whl
}

# unpack WHEEL PATTERN...: into $stage/unpacked.
unpack() {
  local wheel=$1
  shift
  rm -rf "$stage/unpacked"
  # From nothing: on a full disk unzip would ask whether to go on.
  unzip -q -o "$wheel" "$@" -d "$stage/unpacked" </dev/null ||
    die 3 "libtorch: $wheel must unpack into $stage; unzip failed (its message is above); free disk space and run this again"
}

install_torch() {
  local wheel
  # shellcheck disable=SC2086 # project, version and sum are three arguments
  wheel=$(download $torch_wheel)
  say "libtorch: unpacking"
  unpack "$wheel" 'torch/lib/*' 'torch/include/*' 'torch/share/*' 'torch-*.dist-info/*'
  mkdir -p "$home"
  mv "$stage"/unpacked/torch-*.dist-info/ "$stage/unpacked/torch/"
  mv -T "$stage/unpacked/torch" "$home/torch"
  rm -rf "$cache/downloads/torch-"*
}

# The library that the loader asks for goes last: where it lies, its companions (loaded by name later) lie too.
install_cuda_wheel() {
  local soname=$1 project=$2 wheel file
  wheel=$(download "${@:2}")
  unpack "$wheel" 'nvidia/*/lib/*'
  while read -r file; do
    mkdir -p "$home/${file%/*}"
    mv -f "$stage/unpacked/$file" "$home/$file"
  done < <(cd "$stage/unpacked" && find nvidia -type f ! -name "$soname" && find nvidia -type f -name "$soname")
  rm -rf "$cache/downloads/$project-"*
}

# A toolkit that the loader does not know (no ld.so.conf entry) is linked to where libtorch's RPATH looks. All of it:
# some of its libraries open others by name, beside themselves.
link_toolkit() {
  local dir=$1 library
  mkdir -p "$home/nvidia/cu13/lib"
  for library in "$dir"/lib*.so*; do
    [[ -e $home/nvidia/cu13/lib/${library##*/} ]] || ln -sfn "$library" "$home/nvidia/cu13/lib/"
  done
}

provide() {
  local soname=$1 toolkit wheel
  toolkit=$(toolkit_libs)
  if [[ -n $toolkit && -e $toolkit/$soname && ! -e $home/nvidia/cu13/lib/$soname ]]; then
    link_toolkit "$toolkit"
    return
  fi
  wheel=$(wheel_of "$soname")
  [[ -n $wheel ]] ||
    die 3 "libtorch: the loader must find $soname; neither the CUDA toolkit nor a pinned wheel has it; install the package that holds it"
  # shellcheck disable=SC2086 # project, version and sum are three arguments
  install_cuda_wheel "$soname" $wheel
}

# In rounds, because a library that just arrived may ask for further ones.
complete_cuda_libraries() {
  local round sonames
  for round in 1 2 3 4; do
    mapfile -t sonames < <(missing_sonames "$home/torch")
    ((${#sonames[@]})) || return 0
    say "libtorch: not found on this machine (round $round): ${sonames[*]}"
    provide_missing "${sonames[@]}"
  done
  mapfile -t sonames < <(missing_sonames "$home/torch")
  ((${#sonames[@]} == 0)) ||
    die 3 "libtorch: the loader must find its CUDA libraries; still missing after $round rounds: ${sonames[*]}; remove $home and run this again"
}

# Looks again before each: one wheel or one link may have brought several.
provide_missing() {
  local soname
  for soname in "$@"; do
    ! missing_sonames "$home/torch" | grep -qxF "$soname" || provide "$soname"
  done
}

pinned_is_complete() {
  [[ -e $home/torch/share/cmake/Torch/TorchConfig.cmake && -z $(missing_sonames "$home/torch") ]]
}

# For libtorch itself; a CUDA library that no longer fits says so when it is unpacked.
require_room() {
  local need_kib=$((3 * 1024 * 1024)) free_kib
  free_kib=$(df -Pk "$cache" | awk 'NR == 2 { print $4 }')
  ((free_kib >= need_kib)) ||
    die 3 "libtorch: $cache must have 3 GiB free; got $((free_kib / 1024)) MiB; free some, or point XDG_CACHE_HOME elsewhere"
}

require_x86_64() {
  [[ $(uname -m) == x86_64 ]] ||
    die 3 "libtorch: the pinned build is for x86_64; this is $(uname -m); set LIBTORCH=DIR to a libtorch 2.11 of this machine"
}

install_pinned() {
  require_x86_64
  mkdir -p "$cache" || die 3 "libtorch: $cache must be writable; mkdir failed; point XDG_CACHE_HOME elsewhere"
  exec 9>"$cache/lock"
  flock -n 9 || { say "libtorch: another set-up is at work; waiting for it" && flock 9; }
  # Whatever lies there was left by a set-up that was killed: this one holds the lock.
  rm -rf "$stage"
  mkdir -p "$stage"
  trap 'rm -rf "$stage"' EXIT
  trap 'exit 130' INT TERM HUP
  [[ -e $home/torch/share/cmake/Torch/TorchConfig.cmake ]] || { require_room && install_torch; }
  complete_cuda_libraries
  rm -rf "$stage"
  rmdir "$cache/downloads" 2>/dev/null || true
  exec 9>&-
  say "libtorch: ready in $home/torch"
}

use_given() {
  local dir
  for dir in "$LIBTORCH" "$LIBTORCH/torch"; do
    [[ ! -e $dir/share/cmake/Torch/TorchConfig.cmake ]] || libtorch=$(cd "$dir" && pwd)
  done
  [[ -n $libtorch ]] ||
    die 3 "LIBTORCH: the folder must hold share/cmake/Torch/TorchConfig.cmake, itself or in torch/; got $LIBTORCH; correct it, or unset it to use the pinned libtorch"
  local sonames
  mapfile -t sonames < <(missing_sonames "$libtorch")
  ((${#sonames[@]} == 0)) ||
    die 3 "LIBTORCH: the loader must find what $libtorch links; missing: ${sonames[*]}; install them, or unset LIBTORCH to use the pinned libtorch"
}

announce_install() {
  if [[ ! -e $home/torch/share/cmake/Torch/TorchConfig.cmake ]]; then
    say "libtorch: would download ${torch_wheel% *} into $home, then what the loader cannot find"
    return
  fi
  local soname
  for soname in $(missing_sonames "$home/torch"); do
    say "libtorch: would provide $soname from $(wheel_of "$soname" | cut -d' ' -f1,2)"
  done
}

ensure_libtorch() {
  libtorch=
  if [[ -n ${LIBTORCH:-} ]]; then
    use_given
    return
  fi
  libtorch=$home/torch
  pinned_is_complete && return
  if $dry_run; then
    announce_install
  else
    install_pinned
  fi
}
