#!/usr/bin/env bash
# Builds libsymm_hip for all of its architectures with the packages of Debian 12, warnings being
# errors, reads its assembly and runs the tests that load it. Needs .ci/setup.sh to have run.
#   .ci/hip.sh [--quick]   for gfx942 alone; of the others the assembly of one source of each kind
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(cat .cache/python)
jobs=${JOBS:-$(nproc)}
start=$SECONDS
mkdir -p build
.cmake/hip/install.sh
echo "hip: packages there ($((SECONDS - start)) s)"

gpus='gfx90a;gfx942;gfx1100' sampled='' folder=build/hip
if [ "${1:-}" = --quick ]; then
  gpus=gfx942 sampled='gfx90a;gfx1100' folder=build/hip-quick
fi

start=$SECONDS
cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSYMM_BUILD_TORCH=OFF \
  -DSYMM_BUILD_PYTHON=OFF -DSYMM_BUILD_CUDA=OFF -DSYMM_BUILD_HIP=ON -DPython3_EXECUTABLE="$python" \
  -DCMAKE_HIP_ARCHITECTURES="$gpus" -DSYMM_HIP_SAMPLED="$sampled" \
  >"$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }
cmake --build "$folder" -j "$jobs" --target symm_hip symm_hip_sample symm_hip_tests
echo "hip: libsymm_hip compiled and linked ($((SECONDS - start)) s)"

# What a compiler made of the fences is read in the assembly, as nothing here can run it; broken on
# purpose in several ways, it must be refused.
"$python" .cmake/hip/check_assembly.py "$folder/hip" .cmake/hip/kernels.csv
"$python" .cmake/hip/check_assembly.py "$folder/hip" --break

mkdir -p build/reports
ctest --test-dir "$folder" -L hip -j "$jobs" --output-on-failure --no-tests=error \
  --output-junit "$PWD/build/reports/hip.xml"
