#!/usr/bin/env bash
# Builds libsymm_hip for all of its architectures with the packages of Debian 12, warnings being
# errors, reads its assembly and runs the tests that load it. Needs .ci/setup.sh to have run.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(cat .cache/python)
jobs=${JOBS:-$(nproc)}
start=$SECONDS
mkdir -p build
.cmake/hip/install.sh
echo "hip: packages there ($((SECONDS - start)) s)"

start=$SECONDS
cmake -S . -B build/hip -G Ninja -DCMAKE_BUILD_TYPE=Release -DSYMM_BUILD_TORCH=OFF \
  -DSYMM_BUILD_PYTHON=OFF -DSYMM_BUILD_CUDA=OFF -DSYMM_BUILD_HIP=ON -DPython3_EXECUTABLE="$python" \
  >build/hip.log 2>&1 || { cat build/hip.log; exit 1; }
cmake --build build/hip -j "$jobs" --target symm_hip symm_hip_tests
echo "hip: libsymm_hip compiled and linked ($((SECONDS - start)) s)"

# What a compiler made of the fences is read in the assembly, as nothing here can run it; broken on
# purpose in several ways, it must be refused.
"$python" .cmake/hip/check_assembly.py build/hip/hip .cmake/hip/kernels.csv
"$python" .cmake/hip/check_assembly.py build/hip/hip --break

mkdir -p build/reports
ctest --test-dir build/hip -L hip -j "$jobs" --output-on-failure --no-tests=error \
  --output-junit "$PWD/build/reports/hip.xml"
