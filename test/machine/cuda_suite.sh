#!/usr/bin/env bash
# Builds the package for this machine's torch and runs the GPU side of the tests with it. For AMD
# GPUs: hip_suite.sh, which is this script with VENDOR=hip.
#
#   test/machine/cuda_suite.sh [step ...]      steps: gtest memcheck racecheck pytest faults probe
#                                              models conformance bench calls (default: all)
#   VENDOR=cuda            or hip; without memcheck, racecheck and calls, which need CUDA's tools
#   DEVICE_LIBRARY=<path>  libsymm_cuda.so (required), or libsymm_hip.so (built where unset)
#   GPU_TESTS=<path>       the GoogleTest program symm_gpu_tests (for gtest, memcheck, racecheck), or
#                          symm_hip_tests (built with the library)
#   OUT=<folder>           what comes back: summary.json, one JSON a tool, logs.tar.gz
#   SECONDS_LIMIT=560      after so many seconds it has ended by itself; what did not run says so
#   LIMIT_<step>=<seconds> of one step, e.g. LIMIT_pytest=200
#   SITE=<folder>          a package that build_package.sh made, or where it is to be made
#   WHEELS=, GTEST_SOURCE= see build_package.sh
#   PYTEST_FILES=test/python   what pytest is given
#   HIP_ARGS               more arguments of cmake, e.g. -DCMAKE_HIP_ARCHITECTURES=gfx942
#   PYTEST_ARGS, FAULT_ARGS, PROBE_ARGS, CONFORMANCE_ARGS, BENCH_ARGS, CALLS_ARGS: more arguments
#   GTEST_FILTER, CHECK_FILTER: tests of gtest, and of memcheck and racecheck
set -uo pipefail
cd "$(dirname "$0")/../.."

readonly vendor=${VENDOR:-cuda} suite=${VENDOR:-cuda}_suite
every_step=(gtest memcheck racecheck pytest faults probe models conformance bench calls)
case $vendor in
  cuda)
    # A program that uses NVLink multicast can put GPUs that others share out of service.
    for setting in NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1; do
      if [ "$(printenv "${setting%%=*}")" != "${setting##*=}" ]; then
        echo "$suite: $setting must be set in the environment" >&2
        exit 2
      fi
    done
    gpus=$(nvidia-smi -L | grep -c '^GPU')
    ;;
  hip)
    every_step=(gtest pytest faults probe models conformance bench)
    gpus=$(python3 -c 'import torch; print(torch.cuda.device_count() if torch.version.hip else 0)')
    if [ "${gpus:-0}" -lt 1 ]; then
      echo "$suite: python3 has no PyTorch for ROCm that sees a GPU" >&2
      exit 2
    fi
    ;;
  *) echo "cuda_suite: VENDOR must be cuda or hip, but is '$vendor'" >&2; exit 2 ;;
esac
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=("${every_step[@]}")
for step in "${steps[@]}"; do
  case " ${every_step[*]} " in
    *" $step "*) ;;
    *) echo "$suite: no step '$step', expected some of: ${every_step[*]}" >&2; exit 2 ;;
  esac
done

out=$(realpath -m "${OUT:-build/machine}")
work=$(mktemp -d)
logs=$work/logs
mkdir -p "$out" "$logs"
SITE=$(realpath -m "${SITE:-$work/site}")
export SITE
export PYTHONPATH=$SITE PYTHONUNBUFFERED=1 SYMM_TEST_DEVICE=cuda
limit=${SECONDS_LIMIT:-560}
reserve=12 # seconds for packing at the end
ranks=$((gpus >= 4 ? 4 : 2))
bench_nccl=() probe_nccl=() # NCCL needs a GPU for each rank
if [ "$gpus" -ge "$ranks" ]; then
  bench_nccl=(--against nccl) probe_nccl=(--backend nccl)
fi

left() { echo $((limit - reserve - SECONDS)); }

# run_step <name> <default limit> <command...>: runs it with its log; remembers how it ended.
run_step() {
  local name=$1 variable=LIMIT_$1 seconds=$2 started=$SECONDS status
  shift 2
  seconds=${!variable:-$seconds}
  [ "$seconds" -le "$(left)" ] || seconds=$(left)
  if [ "$seconds" -lt 5 ]; then
    echo "$name not_run 0 0" >>"$work/steps"
    return
  fi
  echo "== $name, at most $seconds s"
  # The interrupt lets pytest and the tools write what they have.
  timeout --signal=INT --kill-after=10 "$seconds" "$@" >"$logs/$name.log" 2>&1
  status=$?
  tail -n 12 "$logs/$name.log" | cut -c -300
  echo "$name $status $((SECONDS - started)) $seconds" >>"$work/steps"
  python3 test/machine/summarize.py "$out/summary.json" "$work/steps" "$logs"
}

: >"$work/steps"
[ -n "${DEVICE_LIBRARY:-}" ] || [ "$vendor" = hip ] ||
  { echo "$suite: DEVICE_LIBRARY is not set" >&2; exit 2; }
export WORK=$work LOGS=$logs SUITE=test/machine/$suite.sh
if [ -z "${DEVICE_LIBRARY:-}" ]; then
  build_library() {
    cmake -G Ninja -S . -B "$work/hip" -DCMAKE_BUILD_TYPE=Release -DSYMM_BUILD_TORCH=OFF \
      -DSYMM_BUILD_PYTHON=OFF -DSYMM_BUILD_CUDA=OFF -DSYMM_BUILD_HIP=ON ${HIP_ARGS:-} &&
      cmake --build "$work/hip" --target symm_hip symm_hip_tests
  }
  export -f build_library
  export work
  run_step library 1800 bash -c build_library
  export DEVICE_LIBRARY=$work/hip/backend/libsymm_hip.so
  GPU_TESTS=$work/hip/test/symm_hip_tests
fi
run_step build 240 test/machine/build_package.sh

step_gtest() {
  run_step gtest 120 "$GPU_TESTS" --gtest_filter="${GTEST_FILTER:-*}" \
    --gtest_output="json:$logs/gtest.json"
}
# The tools hold a launch up while another kernel runs, which tests with several groups of threads
# or two streams in flight end by their time-outs; and they have no business with time and size.
readonly in_flight='*DeviceCollectivesTest*:DeviceGraphsTest*:*TwoStreams*'
readonly unchecked="$in_flight:PollingCost*:*BeyondFourGiB"
sanitize() { # sanitize <tool>
  run_step "$1" 120 compute-sanitizer --tool "$1" --error-exitcode 9 --target-processes all \
    --print-limit 20 "$GPU_TESTS" --gtest_filter="${CHECK_FILTER:-*-$unchecked}" \
    --gtest_output="json:$logs/$1.json"
}
step_memcheck() { sanitize memcheck; }
step_racecheck() { sanitize racecheck; }
step_pytest() {
  # shellcheck disable=SC2086
  run_step pytest 300 python3 -m pytest -q -p no:cacheprovider ${PYTEST_FILES:-test/python} \
    --ignore test/python/programs/test_models.py --ignore test/python/tools/test_demo.py \
    --ignore test/python/tools/test_bench.py --ignore test/python/tools/test_doc_snippets.py \
    --durations 15 --junitxml "$logs/pytest.xml" ${PYTEST_ARGS:-}
}
step_faults() {
  # shellcheck disable=SC2086
  run_step faults 400 python3 test/fault/run_faults.py --trials 11 --json "$out/faults.json" \
    ${FAULT_ARGS:-}
}
step_probe() {
  # shellcheck disable=SC2086
  run_step probe 120 python3 -m torch_symm.probe --ranks "$ranks" --backend symm \
    "${probe_nccl[@]}" --json "$out/probe.json" ${PROBE_ARGS:-}
}
step_models() {
  # shellcheck disable=SC2086
  run_step models 200 python3 -m pytest -q -p no:cacheprovider \
    test/python/programs/test_models.py --junitxml "$logs/models.xml" ${PYTEST_ARGS:-}
}
step_conformance() {
  # shellcheck disable=SC2086
  run_step conformance 420 python3 test/conformance/run_distributed_test.py --device cuda \
    --backend symm --against nccl --jobs 20 --time-limit "$(($(left) < 400 ? $(left) - 15 : 385))" \
    --json "$out/conformance.json" ${CONFORMANCE_ARGS:-}
}
step_bench() {
  # shellcheck disable=SC2086
  run_step bench 200 python3 -m torch_symm.bench --device cuda --ranks "$ranks" "${bench_nccl[@]}" \
    --dtype bfloat16 -b 256 -e 256M --json "$out/bench.json" ${BENCH_ARGS:-}
}
step_calls() {
  # shellcheck disable=SC2086
  run_step calls 150 python3 test/machine/driver_calls.py --world "$ranks" \
    --json "$out/calls.json" ${CALLS_ARGS:-}
}

if grep -q '^build 0 ' "$work/steps"; then
  for step in "${steps[@]}"; do
    case $step in
      gtest | memcheck | racecheck)
        if [ ! -x "${GPU_TESTS:-}" ]; then
          echo "$step not_run 0 0" >>"$work/steps"
          continue
        fi
        ;;
    esac
    "step_$step"
  done
fi
python3 test/machine/summarize.py "$out/summary.json" "$work/steps" "$logs" --print
tar -C "$work" -czf "$out/logs.tar.gz" logs
! grep -qv '^[a-z]* 0 ' "$work/steps"
