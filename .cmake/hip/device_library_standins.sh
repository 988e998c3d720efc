#!/usr/bin/env bash
# Makes a folder of AMD device libraries that clang 19 can link: links to the ones that are
# installed, and modules of one constant for what the packages of Debian 12 (5.2) lack.
#   device_library_standins.sh FOLDER CLANG BITCODE_FOLDER
set -euo pipefail

[ $# -eq 3 ] || { echo "usage: $0 FOLDER CLANG BITCODE_FOLDER" >&2; exit 2; }
readonly folder=$1 clang=$2 installed=$3

[ -e "$installed/ockl.bc" ] || {
  echo "$installed holds no device libraries; install the package rocm-device-libs" >&2
  exit 1
}
mkdir -p "$folder"
ln -sf "$installed"/*.bc "$folder"

# NAME SYMBOL VALUE: clang looks for NAME.bc, and the code in the other libraries for SYMBOL.
stand_in() {
  [ -e "$folder/$1.bc" ] && return
  echo "@$2 = linkonce_odr protected local_unnamed_addr addrspace(4) constant i32 $3, align 4" |
    "$clang" --target=amdgcn-amd-amdhsa -nogpulib -Wno-override-module -x ir -emit-llvm -c - -o "$folder/$1.bc"
}

stand_in oclc_isa_version_942 __oclc_ISA_version 9402
stand_in oclc_isa_version_1100 __oclc_ISA_version 11000
stand_in oclc_abi_version_600 __oclc_ABI_version 600
