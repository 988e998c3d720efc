#!/usr/bin/env bash
# Builds the library against the torch of this machine's python3, outside the tree and without a
# network, and runs the C++ and Python tests of the CPU device with it.
#   OUT=<folder>   where the reports and summary.json go (default: build/machine)
#   WHEELS=<folder> Python packages to install beside torch's, where some are missing
#   GTEST_SOURCE=<folder> GoogleTest's sources, where it is not installed
set -uo pipefail
cd "$(dirname "$0")/../.."

out=${OUT:-build/machine}
work=$(mktemp -d)
mkdir -p "$out"
export PYTHONPATH=$work/site
start=$SECONDS
SITE=$work/site WORK=$work LOGS=$out TESTS=1 test/machine/build_package.sh
build=$?
build_seconds=$((SECONDS - start))
[ "$build" = 0 ] || exit 1

ctest --test-dir "$work/build" -j 8 --output-on-failure -E install_tree >"$out/ctest.log" 2>&1
ctest=$?
tail -n 5 "$out/ctest.log"
CUDA_VISIBLE_DEVICES='' python3 -m pytest -q -p no:cacheprovider test/python test/fault \
  --ignore test/python/tools/test_demo.py >"$out/pytest.log" 2>&1
pytest=$?
tail -n 30 "$out/pytest.log"
python3 - "$out/summary.json" "$build" "$build_seconds" "$ctest" "$pytest" <<'PYTHON_END'
import os
import platform
import sys
from pathlib import Path

import torch

sys.path.insert(0, "test/python/support")
from record_file import to_text, write_records

path, build, seconds, ctest, pytest = sys.argv[1:]
folder = Path(path).parent


def last_line(name: str, word: str) -> str:
    lines = [line for line in (folder / name).read_text().splitlines() if word in line]
    return lines[-1].strip("= ") if lines else ""


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


summary = {
    "command": "test/machine/cpu_suite.sh",
    "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "kernel": platform.release()},
    "torch": torch.__version__,
    "python": sys.version.split()[0],
    "build": {"exit": int(build), "seconds": int(seconds)},
    "ctest": {"exit": int(ctest), "summary": last_line("ctest.log", "tests passed")},
    "pytest": {"exit": int(pytest), "summary": last_line("pytest.log", "passed")},
}
write_records(Path(path), summary)
print(to_text(summary))
PYTHON_END
exit $((build + ctest + pytest))
