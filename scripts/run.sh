#!/usr/bin/env bash
# Sets up and builds what is not there yet, then runs the program: scripts/run.sh check-forward --config configs/minimum.yaml
# Relative paths in the arguments are the caller's: the working directory stays.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

main() {
  RMSNORM_TARGETS='' "$root/scripts/build.sh" rmsnorm
  # shellcheck source=/dev/null
  source "$root/build/setup.env"
  exec "$root/build/$RMSNORM_PRESET/bin/rmsnorm" "$@"
}

main "$@"
