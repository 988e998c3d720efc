#!/usr/bin/env bash
# Runs the host code of libsymm_hip on an NVIDIA GPU: the tests of cuda_suite.sh with a
# libsymm_cuda.so whose calls are HIP's (-DSYMM_HIP_PLATFORM=nvidia, see .cmake/SymmHip.cmake), two
# ranks on one GPU. The kernels are CUDA's. Ends well if all steps do and both programs have HIP's
# calls and know no multicast.
#
#   test/machine/hip_on_nvidia.sh [step ...]   steps of cuda_suite.sh (default: gtest pytest faults)
#   DEVICE_LIBRARY=<path>  that libsymm_cuda.so (required)
#   GPU_TESTS=<path>       symm_gpu_tests of the same build (required)
#   OUT=<folder>           what comes back: hip_on_nvidia.json with cuda_suite.sh's summary in it,
#                          faults.json, logs.tar.gz
#   SECONDS_LIMIT=240      after so many seconds it has ended by itself
#   others                 as in cuda_suite.sh
set -uo pipefail
cd "$(dirname "$0")/../.."

out=$(realpath -m "${OUT:-build/machine}")
for setting in DEVICE_LIBRARY GPU_TESTS; do
  if [ ! -r "${!setting:-}" ]; then
    echo "hip_on_nvidia: $setting must name a file, but is '${!setting:-}'" >&2
    exit 2
  fi
done
DEVICE_LIBRARY=$(realpath "$DEVICE_LIBRARY") GPU_TESTS=$(realpath "$GPU_TESTS")
# Where symm_gpu_tests finds the library, unless it runs where it was built.
LD_LIBRARY_PATH=$(dirname "$DEVICE_LIBRARY")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export DEVICE_LIBRARY GPU_TESTS LD_LIBRARY_PATH
export CUDA_DEVICE_MAX_CONNECTIONS=32 SYMM_TEST_WORLD_SIZE=${SYMM_TEST_WORLD_SIZE:-2}
export OUT=$out SECONDS_LIMIT=${SECONDS_LIMIT:-240}
export LIMIT_gtest=${LIMIT_gtest:-85} LIMIT_pytest=${LIMIT_pytest:-100}
files=(cuda/test_cuda_capture collectives/test_collectives symm_mem/test_contiguous_view
  cuda/test_cuda_expandable)
export PYTEST_FILES=${PYTEST_FILES:-$(printf 'test/python/%s.py ' "${files[@]}")}
export FAULT_ARGS=${FAULT_ARGS:---only F1,F2,F9 --trials 2}
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(gtest pytest faults)

mkdir -p "$out"
python3 test/machine/host_calls.py "$out/hip_on_nvidia.json" "$DEVICE_LIBRARY" "$GPU_TESTS" ||
  exit 2
test/machine/cuda_suite.sh "${steps[@]}"
status=$?
python3 test/machine/host_calls.py "$out/hip_on_nvidia.json" "$DEVICE_LIBRARY" "$GPU_TESTS" \
  --suite "$out"
exit $status
