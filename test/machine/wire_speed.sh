#!/usr/bin/env bash
# Measures collectives over wires and by lanes (wire_speed.cu): builds the program with nvcc, unless it
# is there, and runs it. Needs neither CMake nor torch.
#
#   test/machine/wire_speed.sh [build | run]      default: both
#   PROGRAM=<path>   the program (default build/wire_speed/wire_speed; built where missing)
#   OUT=<folder>     gets wire_speed.json (default build/machine)
#   ARCH=90          compute capability, without its point
#   JOBS=            sources compiled at once (default: processors)
#   WORLDS=2,4,8 CALLS=200 REPLAYS=21 WORKSPACE=64 MOST=4 GPUS=1 LEAST=1 DIRECT=0 NORM=0
set -euo pipefail
cd "$(dirname "$0")/../.."
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export CUDA_DEVICE_MAX_CONNECTIONS=32 # the ranks' streams must not share a queue

program=${PROGRAM:-build/wire_speed/wire_speed}
folder=$(dirname "$program")/objects
step=${1:-all}

compile() { # compile <source>
  nvcc -std=c++20 -O3 -arch="sm_$ARCH" -fmad=false --expt-relaxed-constexpr -I. -c "$1" \
    -o "$FOLDER/$(basename "$1").o"
}
export -f compile
if [ ! -x "$program" ] || [ "$step" = build ]; then
  mkdir -p "$folder"
  export ARCH=${ARCH:-90} FOLDER=$folder
  printf '%s\n' kernels/gpu/entry/*.cu kernels/gpu/launch/*.cpp kernels/protocol/*.cpp \
    test/machine/wire_speed.cu |
    xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'compile {}'
  nvcc -arch="sm_$ARCH" "$folder"/*.o -o "$program" -lpthread -ldl -lrt
  rm -r "$folder"
fi
[ "$step" != build ] || exit 0

out=${OUT:-build/machine}
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1
"$program" "$out/wire_speed.json" "${WORLDS:-2,4,8}" "${CALLS:-200}" "${REPLAYS:-21}" \
  "${WORKSPACE:-64}" "${MOST:-4}" "${GPUS:-1}" "${LEAST:-1}" \
  "${DIRECT:-0}" "${NORM:-0}"
