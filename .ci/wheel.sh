#!/usr/bin/env bash
# Builds the wheel for the torch of the environment, in the build's own folder.
#   .ci/wheel.sh [folder]   where it goes (default: dist)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly folder=${1:-dist}
python=$(cat .cache/python)
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)} PIP_DISABLE_PIP_VERSION_CHECK=1
# Or the folder would forget the tests that it has built; the wheel is the same.
[ ! -e build/installed.tests ] || export SYMM_BUILD_TESTS=ON
mkdir -p .cache/tmp
TMPDIR=$PWD/.cache/tmp .ci/step "wheel" \
  "$python" -m pip wheel --verbose --no-build-isolation --no-deps --wheel-dir "$folder" .
ls "$folder"/*.whl
