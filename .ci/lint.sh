#!/usr/bin/env bash
# Formatting, static checks and the structure test. Runs all of them and fails at the end if any
# failed. Needs .ci/setup.sh to have run.
set -uo pipefail
cd "$(dirname "$0")/.."

python=$(cat .cache/python)
jobs=${JOBS:-$(nproc)}
failed=()

tool() {
  "$python" -c "import $1, os; print(os.path.join(os.path.dirname($1.__file__), 'data/bin/$2'))"
}

step() {
  local name=$1 start=$SECONDS
  shift
  if "$@"; then
    echo "lint: $name ok ($((SECONDS - start)) s)"
  else
    echo "lint: $name FAILED ($((SECONDS - start)) s)"
    failed+=("$name")
  fi
}

cpp_files() {
  find kernels symm_mem backend python_registration test docs \
    \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' -o -name '*.inc' \) \
    -not -path '*/build*/*' | sort
}

format() {
  cpp_files | xargs "$(tool clang_format clang-format)" --dry-run -Werror
}

# In the units that the build compiles, a folder's sources in one: most of the time goes into what
# they include. Left out: the torch-facing sources, because torch's headers alone cost most of a
# minute a file, the vector instantiations, whose intrinsics' header the packaged clang-tidy does not
# bring, and what includes a GPU vendor's headers, which need not be installed.
tidy() {
  cmake -S . -B build/tidy -G Ninja -DSYMM_BUILD_TORCH=OFF -DSYMM_BUILD_TESTS=OFF \
    -DSYMM_BUILD_CUDA=OFF -DSYMM_UNITY_BUILD=ON -DCMAKE_BUILD_TYPE=Release \
    -DPython3_EXECUTABLE="$python" \
    >build/tidy.log 2>&1 ||
    { cat build/tidy.log; return 1; }
  grep -o '"file": ".*"' build/tidy/compile_commands.json | cut -d'"' -f4 | grep -v '/reduce_avx' |
    xargs -P "$jobs" -n 1 "$(tool clang_tidy clang-tidy)" -p build/tidy --quiet \
      --extra-arg=-Wno-unknown-warning-option --extra-arg=-idirafter"$(g++ -print-file-name=include)" \
      2> >(grep -Ev 'warnings? (generated|treated)' >&2)
}

mkdir -p build/reports
step clang-format format
step ruff "$python" -m ruff check --quiet .
step ruff-format "$python" -m ruff format --check --quiet .
step structure "$python" -m pytest -q test/structure --junitxml=build/reports/structure.xml
step clang-tidy tidy
if [ ${#failed[@]} -gt 0 ]; then
  echo "lint: failed: ${failed[*]}"
  exit 1
fi
