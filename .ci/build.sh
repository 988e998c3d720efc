#!/usr/bin/env bash
# Compiles the package and installs it into the environment that .ci/setup.sh has made; compiles
# what has changed since the last time, and does nothing when nothing has.
#   .ci/build.sh [--tests]   also the C++ tests
#   JOBS=...                 compilers at once (default: one a core)
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(cat .cache/python)
readonly python stamp=build/installed
tests=OFF
[ "${1:-}" != --tests ] || tests=ON

# What decides about the build beside the sources.
wanted() {
  echo "$python"
  env | grep -E '^(SYMM_[A-Z_]*|CMAKE_[A-Z_]*|CXX|CXXFLAGS|CUDACXX|NVCC_[A-Z_]*)=' | sort
  "$python" -c 'from importlib import metadata; print(metadata.version("torch"))'
}

# With the tests in it, the build serves those who need none as well.
is_installed() {
  local folders=(CMakeLists.txt pyproject.toml .cmake backend kernels symm_mem python_registration)
  if [ "$tests" = ON ]; then
    [ -e "$stamp.tests" ] || return 1
    folders+=(test)
  fi
  [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$settings" ] &&
    "$python" -c 'from importlib import metadata; metadata.version("torch-symm")' 2>/dev/null &&
    [ -z "$(find "${folders[@]}" -newer "$stamp" -type f -not -name '*.pyc' -print -quit)" ]
}

settings=$(wanted)
if is_installed; then
  exit 0
fi
export SYMM_BUILD_TESTS=$tests CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p .cache/tmp build
rm -f "$stamp" "$stamp.tests"
started=$(mktemp build/started.XXXXXX)  # An edit during the build is newer than this.
TMPDIR=$PWD/.cache/tmp .ci/step "build" \
  "$python" -m pip install --verbose --no-build-isolation --no-deps .
echo "$settings" >"$stamp"
touch -r "$started" "$stamp"
rm -f "$started"
[ "$tests" = OFF ] || touch "$stamp.tests"
