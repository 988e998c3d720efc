#!/usr/bin/env bash
# On a machine with AMD GPUs, ROCm 7 and its PyTorch: builds libsymm_hip and the package, runs the
# tests on the GPUs and writes OUT/summary.json (OUT is build/machine where unset). No AMD GPU has
# been at hand so far: what this prints is the first evidence of its kind (docs/hip.md).
#
#   test/machine/hip_suite.sh [step ...]   steps and variables: see cuda_suite.sh
export VENDOR=hip SECONDS_LIMIT=${SECONDS_LIMIT:-7200}
exec "$(dirname "$0")/cuda_suite.sh" "$@"
