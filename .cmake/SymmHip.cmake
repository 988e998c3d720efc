# The HIP device library libsymm_hip.so: torch-free, opened by libsymm at run time, made of the same
# sources as libsymm_cuda.so. It needs HIP and clang to build and neither a GPU nor a driver.
#
#   SYMM_BUILD_HIP           AUTO: built where ROCm 6 or newer is installed and nothing is
#                            sanitized; ON: there, or with the packages of Debian 12 that
#                            .cmake/hip/install.sh installs; OFF
#   CMAKE_HIP_ARCHITECTURES  e.g. "gfx942"; machine code for each
#   SYMM_HIP_PLATFORM        amd; or nvidia: no libsymm_hip.so, but libsymm_cuda.so made with HIP's
#                            calls in place of CUDA's, by which the tests on an NVIDIA GPU run the
#                            host code of libsymm_hip.so. It needs nvcc 13 and, of install.sh's
#                            packages, libamdhip64-dev; it has no multicast.
#
# Defines the target symm_hip where it is built, and SYMM_HIP_DIRECTORY, the folder of the build
# that holds the library, or "", with SYMM_HIP_MAJOR, the major version of HIP.

set(SYMM_BUILD_HIP "AUTO" CACHE STRING "Build the HIP device library: AUTO, ON or OFF")
set(SYMM_HIP_PLATFORM "amd" CACHE STRING "What HIP's host calls are for: amd or nvidia")
set(SYMM_HIP_DIRECTORY "")
if(SYMM_HIP_PLATFORM STREQUAL "nvidia")
  include(SymmHipOnNvidia)
  return()
endif()
if(NOT SYMM_HIP_PLATFORM STREQUAL "amd")
  message(FATAL_ERROR "SYMM_HIP_PLATFORM must be amd or nvidia, but is \"${SYMM_HIP_PLATFORM}\".")
endif()
if(NOT SYMM_BUILD_HIP)
  set(SYMM_BUILD_HIP OFF)
endif()
if(NOT SYMM_BUILD_HIP MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|1|0|YES|NO)$")
  message(FATAL_ERROR "SYMM_BUILD_HIP must be AUTO, ON or OFF, but is \"${SYMM_BUILD_HIP}\".")
endif()
if(SYMM_BUILD_HIP STREQUAL "AUTO" AND SYMM_SANITIZE)
  message(STATUS "libsymm_hip: left out, as the build is sanitized (SYMM_BUILD_HIP=AUTO)")
  return()
endif()
if(NOT SYMM_BUILD_HIP)
  message(STATUS "libsymm_hip: left out (SYMM_BUILD_HIP=${SYMM_BUILD_HIP})")
  return()
endif()

find_path(SYMM_ROCM_ROOT lib/cmake/hip-lang/hip-lang-config.cmake
          PATHS ENV ROCM_PATH ENV ROCM_HOME ENV HIP_PATH /opt/rocm NO_DEFAULT_PATH)
mark_as_advanced(SYMM_ROCM_ROOT)
if(SYMM_ROCM_ROOT)
  set(_hip_include "${SYMM_ROCM_ROOT}/include")
else()
  find_program(SYMM_HIP_CLANG clang++-19 PATHS /usr/lib/llvm-19/bin)
  find_path(SYMM_HIP_BITCODE ockl.bc PATHS /usr/lib/x86_64-linux-gnu/amdgcn/bitcode
            NO_DEFAULT_PATH)
  find_path(SYMM_HIP_INCLUDE hip/hip_version.h)
  mark_as_advanced(SYMM_HIP_CLANG SYMM_HIP_BITCODE SYMM_HIP_INCLUDE)
  set(_hip_include "${SYMM_HIP_INCLUDE}")
  if(SYMM_BUILD_HIP STREQUAL "AUTO")
    message(STATUS "libsymm_hip: left out, as no ROCm was found (SYMM_BUILD_HIP=AUTO)")
    return()
  endif()
  if(NOT SYMM_HIP_CLANG OR NOT SYMM_HIP_BITCODE OR NOT SYMM_HIP_INCLUDE)
    message(FATAL_ERROR "SYMM_BUILD_HIP=${SYMM_BUILD_HIP} needs ROCm 6 or newer (set ROCM_PATH), "
                        "or on Debian 12 the packages that .cmake/hip/install.sh installs.")
  endif()
endif()

file(STRINGS "${_hip_include}/hip/hip_version.h" _hip_version_lines
     REGEX "define HIP_VERSION_(MAJOR|MINOR) +[0-9]+")
string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*" "\\1.\\2" _hip_version
                     "${_hip_version_lines}")
if(SYMM_ROCM_ROOT AND _hip_version VERSION_LESS 6)
  set(_hip_too_old "ROCm in ${SYMM_ROCM_ROOT} has HIP ${_hip_version}, 6.0 is needed")
  if(SYMM_BUILD_HIP STREQUAL "AUTO")
    message(STATUS "libsymm_hip: left out, as ${_hip_too_old} (SYMM_BUILD_HIP=AUTO)")
    return()
  endif()
  message(FATAL_ERROR "SYMM_BUILD_HIP=${SYMM_BUILD_HIP}: ${_hip_too_old}.")
endif()

if(NOT CMAKE_HIP_ARCHITECTURES)
  set(CMAKE_HIP_ARCHITECTURES gfx90a gfx942 gfx1100)
endif()
include(SymmDeviceSources)
# A directory of its own: there the kernels' sources are of language HIP.
add_subdirectory("${PROJECT_SOURCE_DIR}/.cmake/hip" "${PROJECT_BINARY_DIR}/hip")
set(SYMM_HIP_DIRECTORY "${SYMM_DEVICE_LIBRARY_DIRECTORY}")
string(REGEX REPLACE "[.].*" "" SYMM_HIP_MAJOR "${_hip_version}")
message(STATUS "libsymm_hip: HIP ${_hip_version}, ${CMAKE_HIP_ARCHITECTURES}")
