#!/usr/bin/env bash
# Builds all of symm on a machine with GPUs, without a network: libsymm_cuda for the GPUs that are
# there, the C++ tests on a GPU, and the Python package for the torch of python3.
#
#   test/machine/build_all.sh
#   WORK=<folder>     where it builds (required); the results:
#                     $WORK/cuda/backend/libsymm_cuda.so, $WORK/cuda/test/symm_gpu_tests, $WORK/site
#   LOGS=, WHEELS=, GTEST_SOURCE=   see build_package.sh
set -uo pipefail
cd "$(dirname "$0")/../.."
: "${WORK:?names the folder to build in}"
export WORK LOGS=${LOGS:-$WORK} SITE=$WORK/site
mkdir -p "$WORK" "$LOGS" "$SITE"

if [ -n "${WHEELS:-}" ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$SITE" "$WHEELS"/*.whl ||
    exit 1
fi
if [ ! -e /usr/include/gtest/gtest.h ] && [ ! -e "$WORK/prefix/include/gtest/gtest.h" ]; then
  cmake -G Ninja -S "${GTEST_SOURCE:-/usr/src/googletest}" -B "$WORK/gtest" \
    -DCMAKE_INSTALL_PREFIX="$WORK/prefix" -DCMAKE_BUILD_TYPE=Release -DBUILD_GMOCK=OFF \
    >"$LOGS/gtest.log" 2>&1 && ninja -C "$WORK/gtest" install >>"$LOGS/gtest.log" 2>&1 || exit 1
fi

PYTHONPATH=$SITE WHEELS='' test/machine/build_package.sh &
package=$!
architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
PYTHONPATH=$SITE cmake -G Ninja -S . -B "$WORK/cuda" -DPython3_EXECUTABLE="$(command -v python3)" \
  -DCMAKE_PREFIX_PATH="$WORK/prefix" -DSYMM_BUILD_TORCH=OFF -DSYMM_BUILD_CUDA=ON \
  -DCMAKE_CUDA_ARCHITECTURES="$architecture" >"$LOGS/cuda_configure.log" 2>&1 &&
  ninja -C "$WORK/cuda" -k 0 symm_cuda symm_gpu_tests symm_multirank_tests >"$LOGS/cuda_build.log" 2>&1
library=$?
[ "$library" = 0 ] || grep -hE 'error|Error' "$LOGS"/cuda_{configure,build}.log | head -n 30
wait "$package" || exit 1
[ "$library" = 0 ] && cp "$WORK/cuda/backend/libsymm_cuda.so" "$SITE/torch_symm/"
