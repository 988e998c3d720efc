#!/usr/bin/env bash
# What `make test-gpu` runs, on a machine without a network: builds all (build_all.sh), then the
# Python tests, the faults and the C++ tests on the GPUs at hand.
#   WORK=<folder>, WHEELS=<folder>   see build_all.sh
#   OUT=<folder>                     gets gpu_suite.log, gpu_suite.xml and build.json
#   JOBS=<number>                    files of tests at once, else what run_tests.py takes
#   further arguments                for test/run_tests.py
set -uo pipefail
cd "$(dirname "$0")/../.."
: "${WORK:?names the folder to build in}" "${OUT:?names the folder for the results}"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

test/machine/build_all.sh || exit 1
size=$(stat -c %s "$WORK/cuda/backend/libsymm_cuda.so")
printf '{"build_s": %d, "libsymm_cuda_bytes": %d}\n' "$SECONDS" "$size" | tee "$OUT/build.json"
PYTHONPATH=$WORK/site python3 test/run_tests.py --device cuda ${JOBS:+--jobs "$JOBS"} \
  --gpu-tests "$WORK/cuda/test/symm_gpu_tests" --reports "$WORK/reports" "$@" | tee "$OUT/gpu_suite.log"
status=${PIPESTATUS[0]}
cp "$WORK/reports/pytest.xml" "$OUT/gpu_suite.xml"
exit "$status"
