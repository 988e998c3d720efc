# The CUDA device library libsymm_cuda.so: torch-free, with the CUDA runtime linked in, opened by
# libsymm at run time. It needs a CUDA toolkit to build and neither a GPU nor a driver.
#
#   SYMM_BUILD_CUDA           AUTO: built when nvcc is found, there is code to make for it (a GPU,
#                             or architectures that are named) and nothing is sanitized; ON; OFF
#   CMAKE_CUDA_ARCHITECTURES  as CMake takes them, e.g. "90"; where unset, machine code for the GPUs
#                             of this machine; with ON and no GPU, machine code for 8.0, 9.0 and
#                             10.0 and PTX of 9.0 for others from there on
#   SYMM_CUDA_LIBRARY         a libsymm_cuda.so of another build, taken as it is; no toolkit needed
#
# Defines the target symm_cuda where it is built, and SYMM_CUDA_DIRECTORY, the folder of the build
# that holds the library (the one of libsymm), or "" where there is none.

set(SYMM_BUILD_CUDA "AUTO" CACHE STRING "Build the CUDA device library: AUTO, ON or OFF")
set(SYMM_CUDA_LIBRARY "" CACHE FILEPATH "A libsymm_cuda.so that was built elsewhere")
set(SYMM_CUDA_DIRECTORY "")
if(NOT SYMM_BUILD_CUDA)
  set(SYMM_BUILD_CUDA OFF)
endif()
if(NOT SYMM_BUILD_CUDA MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|1|0|YES|NO)$")
  message(FATAL_ERROR "SYMM_BUILD_CUDA must be AUTO, ON or OFF, but is \"${SYMM_BUILD_CUDA}\".")
endif()

include(SymmDeviceSources)
set(_cuda_directory "${SYMM_DEVICE_LIBRARY_DIRECTORY}")

if(SYMM_CUDA_LIBRARY)
  if(NOT EXISTS "${SYMM_CUDA_LIBRARY}")
    message(FATAL_ERROR "SYMM_CUDA_LIBRARY=${SYMM_CUDA_LIBRARY} does not exist.")
  endif()
  configure_file("${SYMM_CUDA_LIBRARY}" "${_cuda_directory}/libsymm_cuda.so" COPYONLY)
  symm_install_device_library(PROGRAMS "${_cuda_directory}/libsymm_cuda.so")
  set(SYMM_CUDA_DIRECTORY "${_cuda_directory}")
  message(STATUS "libsymm_cuda: taken from ${SYMM_CUDA_LIBRARY}")
  return()
endif()

if(SYMM_BUILD_CUDA STREQUAL "AUTO" AND SYMM_SANITIZE)
  message(STATUS "libsymm_cuda: left out, as the build is sanitized (SYMM_BUILD_CUDA=AUTO)")
  return()
endif()
if(NOT SYMM_BUILD_CUDA)
  message(STATUS "libsymm_cuda: left out (SYMM_BUILD_CUDA=${SYMM_BUILD_CUDA})")
  return()
endif()

# The GPUs of this machine, e.g. "90-real".
set(_cuda_present "")
execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                OUTPUT_VARIABLE _cuda_capabilities RESULT_VARIABLE _cuda_status ERROR_QUIET)
if(_cuda_status EQUAL 0)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" _cuda_capabilities "${_cuda_capabilities}")
  list(REMOVE_DUPLICATES _cuda_capabilities)
  foreach(capability IN LISTS _cuda_capabilities)
    string(REPLACE "." "" capability "${capability}")
    list(APPEND _cuda_present "${capability}-real")
  endforeach()
endif()
if(SYMM_BUILD_CUDA STREQUAL "AUTO" AND NOT _cuda_present AND NOT CMAKE_CUDA_ARCHITECTURES)
  message(STATUS "libsymm_cuda: left out, as this machine has no NVIDIA GPU and "
                 "CMAKE_CUDA_ARCHITECTURES names none (SYMM_BUILD_CUDA=AUTO)")
  return()
endif()

if(CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
  set(_cuda_found TRUE)
else()
  find_program(SYMM_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(SYMM_NVCC)
  set(_cuda_found "${SYMM_NVCC}")
  if(SYMM_NVCC)
    set(CMAKE_CUDA_COMPILER "${SYMM_NVCC}")
  endif()
endif()
if(NOT _cuda_found)
  if(SYMM_BUILD_CUDA STREQUAL "AUTO")
    message(STATUS "libsymm_cuda: left out, as no nvcc was found (SYMM_BUILD_CUDA=AUTO)")
    return()
  endif()
  message(FATAL_ERROR "SYMM_BUILD_CUDA=${SYMM_BUILD_CUDA} needs nvcc: put it on PATH or set "
                      "CUDACXX; -DSYMM_BUILD_CUDA=OFF builds without CUDA.")
endif()

# Empty, as a wheel's build may hand it on, means the default.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${_cuda_present})
endif()
# No kernel has a path for more than compute capability 9.0, so its PTX serves 10.0 as well: a pass
# of the compiler less.
set(_cuda_from_90 "")
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real)
  set(_cuda_from_90 "--generate-code=arch=compute_90,code=[compute_90,sm_90,sm_100]")
endif()
if(SYMM_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${SYMM_CCACHE}")
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  # CMake 3.25 does not know that nvcc has C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
find_package(CUDAToolkit REQUIRED)
# As many compilers at once as there are cores: more hold each other up. On 2 cores all took 117 s,
# 130 without the pool, 153 where each nvcc has threads too. Those are for machines with more cores
# than long sources.
cmake_host_system_information(RESULT _cuda_cores QUERY NUMBER_OF_LOGICAL_CORES)
set_property(GLOBAL APPEND PROPERTY JOB_POOLS symm_cuda=${_cuda_cores})
set(_cuda_threads 1)
if(_cuda_cores GREATER 8)
  set(_cuda_threads 3)
endif()
# A sixth of the size, for milliseconds when a kernel is first loaded.
set(_cuda_compress "")
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
  set(_cuda_compress "--compress-mode=size")
endif()

# The kernels and what launches them; the tests on a GPU link them directly. The longest, most of
# the work, are compiled first.
set(_cuda_longest ${SYMM_DEVICE_KERNELS})
list(FILTER _cuda_longest INCLUDE REGEX "/(norm|reduce_)")
list(REVERSE _cuda_longest)
set(_cuda_other_kernels ${SYMM_DEVICE_KERNELS})
list(REMOVE_ITEM _cuda_other_kernels ${_cuda_longest})
add_library(symm_cuda_kernels OBJECT ${_cuda_longest} ${_cuda_other_kernels}
                                     ${SYMM_DEVICE_LAUNCH})
add_library(symm_cuda SHARED $<TARGET_OBJECTS:symm_cuda_kernels> ${SYMM_DEVICE_RUNTIME}
                             ${SYMM_DEVICE_SHARED})

foreach(target IN ITEMS symm_cuda_kernels symm_cuda)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_options(
    ${target}
    PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;--expt-relaxed-constexpr;--threads=${_cuda_threads};${_cuda_compress};${_cuda_from_90}>"
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings -Xcompiler=-Wall,-Wextra,-Werror>")
  target_link_libraries(${target} PRIVATE CUDA::cudart_static Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden
                                             CUDA_VISIBILITY_PRESET hidden
                                             VISIBILITY_INLINES_HIDDEN ON)
endforeach()
set_target_properties(symm_cuda_kernels PROPERTIES JOB_POOL_COMPILE symm_cuda)
symm_link_device_library(symm_cuda)
set(SYMM_CUDA_DIRECTORY "${_cuda_directory}")
message(STATUS "libsymm_cuda: CUDA ${CUDAToolkit_VERSION}, ${CMAKE_CUDA_ARCHITECTURES} ${_cuda_from_90}")
