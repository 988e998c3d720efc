#!/usr/bin/env bash
# Installs what SYMM_BUILD_HIP=ON needs on Debian 12, unless it is there.
set -euo pipefail

readonly packages=(libamdhip64-dev rocm-device-libs clang-19 lld-19 clang-tools-19)

missing=()
for package in "${packages[@]}"; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "hip: install these Debian packages first: ${missing[*]}" >&2
  exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
  >/dev/null
