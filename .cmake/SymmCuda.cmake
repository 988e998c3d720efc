# The CUDA device library libsymm_cuda.so: torch-free, with the CUDA runtime linked in, opened by
# libsymm at run time. It needs a CUDA toolkit to build and neither a GPU nor a driver.
#
#   SYMM_CUDA                AUTO: built when nvcc is found and nothing is sanitized; ON; OFF
#   SYMM_CUDA_ARCHITECTURES  compute capabilities, e.g. "90"; machine code for each, and PTX of the
#                            last for newer ones
#   SYMM_CUDA_LIBRARY        a libsymm_cuda.so of another build, taken as it is; no toolkit needed
#
# Defines the target symm_cuda where it is built, and SYMM_CUDA_DIRECTORY, the folder of the build
# that holds the library (the one of libsymm), or "" where there is none.

set(SYMM_CUDA "AUTO" CACHE STRING "Build the CUDA device library: AUTO, ON or OFF")
set(SYMM_CUDA_ARCHITECTURES "80;90;100" CACHE STRING "Compute capabilities of the CUDA kernels")
set(SYMM_CUDA_LIBRARY "" CACHE FILEPATH "A libsymm_cuda.so that was built elsewhere")
set(SYMM_CUDA_DIRECTORY "")
if(NOT SYMM_CUDA)
  set(SYMM_CUDA OFF)
endif()
if(NOT SYMM_CUDA MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|1|0|YES|NO)$")
  message(FATAL_ERROR "SYMM_CUDA must be AUTO, ON or OFF, but is \"${SYMM_CUDA}\".")
endif()

# Beside libsymm, in the build, the wheel and the install tree: libsymm looks there first.
set(_cuda_directory "${PROJECT_BINARY_DIR}/backend")
function(symm_install_cuda_library)
  if(SKBUILD)
    install(${ARGV} DESTINATION torch_symm COMPONENT python)
  endif()
  install(${ARGV} DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
endfunction()

if(SYMM_CUDA_LIBRARY)
  if(NOT EXISTS "${SYMM_CUDA_LIBRARY}")
    message(FATAL_ERROR "SYMM_CUDA_LIBRARY=${SYMM_CUDA_LIBRARY} does not exist.")
  endif()
  configure_file("${SYMM_CUDA_LIBRARY}" "${_cuda_directory}/libsymm_cuda.so" COPYONLY)
  symm_install_cuda_library(PROGRAMS "${_cuda_directory}/libsymm_cuda.so")
  set(SYMM_CUDA_DIRECTORY "${_cuda_directory}")
  message(STATUS "libsymm_cuda: taken from ${SYMM_CUDA_LIBRARY}")
  return()
endif()

if(SYMM_CUDA STREQUAL "AUTO" AND SYMM_SANITIZE)
  message(STATUS "libsymm_cuda: left out, as the build is sanitized (SYMM_CUDA=AUTO)")
  return()
endif()
if(NOT SYMM_CUDA)
  message(STATUS "libsymm_cuda: left out (SYMM_CUDA=${SYMM_CUDA})")
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
  if(SYMM_CUDA STREQUAL "AUTO")
    message(STATUS "libsymm_cuda: left out, as no nvcc was found (SYMM_CUDA=AUTO)")
    return()
  endif()
  message(FATAL_ERROR "SYMM_CUDA=${SYMM_CUDA} needs nvcc: put it on PATH or set CUDACXX; "
                      "-DSYMM_CUDA=OFF builds without CUDA.")
endif()

# An empty value, as a wheel's build may hand on, means the default.
set(_cuda_architectures ${SYMM_CUDA_ARCHITECTURES})
if(NOT _cuda_architectures)
  set(_cuda_architectures 80 90 100)
endif()
list(SORT _cuda_architectures COMPARE NATURAL)
list(LENGTH _cuda_architectures _cuda_threads)
list(POP_BACK _cuda_architectures _cuda_newest)
list(TRANSFORM _cuda_architectures APPEND "-real")
set(CMAKE_CUDA_ARCHITECTURES ${_cuda_architectures} ${_cuda_newest})  # the last with its PTX
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

# The kernels and what launches them; the tests on a GPU link them directly. What symm_core has too
# (kernels/gpu/CMakeLists.txt) comes from there in the tests.
file(GLOB _kernel_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/kernels/gpu/*.cu"
     "${PROJECT_SOURCE_DIR}/kernels/gpu/*.cpp")
set(_shared_sources kernels/gpu/device_layout.cpp kernels/gpu/transfer_schedule.cpp)
foreach(source IN LISTS _shared_sources)
  list(REMOVE_ITEM _kernel_sources "${PROJECT_SOURCE_DIR}/${source}")
endforeach()
add_library(symm_cuda_kernels OBJECT ${_kernel_sources})

file(GLOB _runtime_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/symm_mem/device/gpu_*.cpp")
add_library(
  symm_cuda SHARED
  $<TARGET_OBJECTS:symm_cuda_kernels>
  ${_runtime_sources}
  # What it shares with libsymm, which it does not link.
  ${_shared_sources} kernels/core/error.cpp kernels/core/signal_pad.cpp
  symm_mem/device/device_runtime.cpp
  symm_mem/device/memory_handle.cpp symm_mem/fork_guard.cpp symm_mem/multicast.cpp
  symm_mem/system_error.cpp)

foreach(target IN ITEMS symm_cuda_kernels symm_cuda)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_options(
    ${target}
    PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;--expt-relaxed-constexpr;--threads=${_cuda_threads}>"
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings -Xcompiler=-Wall,-Wextra,-Werror>")
  target_link_libraries(${target} PRIVATE CUDA::cudart_static Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden
                                             CUDA_VISIBILITY_PRESET hidden
                                             VISIBILITY_INLINES_HIDDEN ON)
endforeach()
set_target_properties(
  symm_cuda PROPERTIES LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY "${_cuda_directory}"
                       LINK_DEPENDS "${PROJECT_SOURCE_DIR}/.cmake/device_library.map")
# One symbol is exported; the runtime inside must not be mistaken for the process's own.
target_link_options(symm_cuda PRIVATE
                    "LINKER:--version-script=${PROJECT_SOURCE_DIR}/.cmake/device_library.map")
if(NOT SYMM_SANITIZE)
  target_link_options(symm_cuda PRIVATE LINKER:--no-undefined)
endif()
symm_install_cuda_library(TARGETS symm_cuda LIBRARY)
set(SYMM_CUDA_DIRECTORY "${_cuda_directory}")
message(STATUS "libsymm_cuda: CUDA ${CUDAToolkit_VERSION}, ${CMAKE_CUDA_ARCHITECTURES}")
