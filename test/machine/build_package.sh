#!/usr/bin/env bash
# Builds the torch-facing part against the torch of this machine's python3, outside the tree and
# without a network, and makes a folder that PYTHONPATH can name. Does nothing where that folder
# was made from the same sources.
#   SITE=<folder>          the folder to make (required)
#   WORK=<folder>          where the build stands (required); C++ tests are in $WORK/build
#   LOGS=<folder>          configure.log, build.log (default: $WORK)
#   DEVICE_LIBRARY=<path>  a libsymm_cuda.so to take as it is; without it none is built
#   VENDOR=hip             DEVICE_LIBRARY is a libsymm_hip.so
#   TESTS=1                also builds the C++ tests
#   WHEELS=<folder>        Python packages to install beside torch's, where some are missing
#   GTEST_SOURCE=<folder>  GoogleTest's sources, where it is not installed
set -uo pipefail
cd "$(dirname "$0")/../.."
: "${SITE:?names the folder to make}" "${WORK:?names the folder to build in}"
logs=${LOGS:-$WORK}
tests=${TESTS:-0} vendor=${VENDOR:-cuda}
library=${DEVICE_LIBRARY:+$(realpath "$DEVICE_LIBRARY")}
mkdir -p "$SITE" "$WORK" "$logs"

fingerprint() {
  {
    find CMakeLists.txt .cmake backend kernels symm_mem python_registration -type f \
      -not -path '*/__pycache__/*' -print0 | sort -z | xargs -0 sha256sum
    if [ "$tests" = 1 ]; then
      find test -name '*.[ch]pp' -print0 | sort -z | xargs -0 sha256sum
    fi
    [ -z "$library" ] || sha256sum <"$library"
    echo "tests $tests"
    python3 -c 'import sys, torch; print(sys.version, torch.__version__)'
  } | sha256sum
}

install_wheels() {
  [ -n "${WHEELS:-}" ] || return 0
  python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$SITE" \
    "$WHEELS"/*.whl
}

install_gtest() {
  local source=${GTEST_SOURCE:-/usr/src/googletest}
  if [ "$tests" != 1 ] || [ -e /usr/include/gtest/gtest.h ] || [ ! -d "$source" ]; then
    return 0
  fi
  cmake -G Ninja -S "$source" -B "$WORK/gtest" -DCMAKE_INSTALL_PREFIX="$WORK/prefix" \
    -DCMAKE_BUILD_TYPE=Release -DBUILD_GMOCK=OFF >"$logs/gtest.log" 2>&1 &&
    ninja -C "$WORK/gtest" install >>"$logs/gtest.log" 2>&1
}

build() {
  # SKBUILD: install rules and run paths of a Python package.
  local settings=(-DSKBUILD=ON -DSYMM_BUILD_CUDA=OFF -DSYMM_BUILD_HIP=OFF -DSYMM_BUILD_TESTS=OFF)
  [ "$tests" != 1 ] || settings+=(-DSYMM_BUILD_TESTS=ON)
  [ -z "$library" ] || [ "$vendor" != cuda ] || settings+=(-DSYMM_CUDA_LIBRARY="$library")
  cmake -G Ninja -S . -B "$WORK/build" -DPython3_EXECUTABLE="$(command -v python3)" \
    -DCMAKE_PREFIX_PATH="$WORK/prefix" "${settings[@]}" >"$logs/configure.log" 2>&1 &&
    ninja -C "$WORK/build" -k 0 >"$logs/build.log" 2>&1
}

make_site() {
  local package=$SITE/torch_symm info=$SITE/torch_symm-0.dist-info
  rm -rf "$package" "$info"
  cmake --install "$WORK/build" --component python --prefix "$SITE" >"$logs/install.log" || return
  cp -r python_registration/torch_symm/. "$package"
  [ -z "$library" ] || cp "$library" "$package/libsymm_$vendor.so"
  mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: torch-symm\nVersion: 0\n' >"$info/METADATA"
  printf '[torch.backends]\nsymm = torch_symm._autoload:autoload\n' >"$info/entry_points.txt"
}

now=$(fingerprint)
if [ "$(cat "$SITE/.built_from" 2>/dev/null)" = "$now" ]; then
  echo "build_package: $SITE is up to date"
  exit 0
fi
export PYTHONPATH=$SITE
install_wheels && install_gtest && build
status=$?
if [ "$status" != 0 ]; then
  grep -hE 'error|Error|FAILED' "$logs"/{gtest,configure,build}.log 2>/dev/null | head -n 40
  exit "$status"
fi
make_site && echo "$now" >"$SITE/.built_from"
