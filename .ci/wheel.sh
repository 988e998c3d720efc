#!/usr/bin/env bash
# Builds the wheel for the torch of the environment into dist/, in the build's own folder.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(cat .cache/python)
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)} PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p .cache/tmp
TMPDIR=$PWD/.cache/tmp .ci/step "wheel" \
  "$python" -m pip wheel --verbose --no-build-isolation --no-deps --wheel-dir dist .
ls dist/*.whl
