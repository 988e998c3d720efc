# SYMM_HIP_PLATFORM=nvidia: makes symm_cuda of HIP's calls; see SymmHip.cmake. Defines the target
# symm_hip_on_nvidia, which whatever includes kernels/gpu/vendor/gpu_api.hpp links.

if(NOT TARGET symm_cuda)
  message(FATAL_ERROR "SYMM_HIP_PLATFORM=nvidia needs SYMM_BUILD_CUDA=ON and nvcc.")
endif()
find_path(SYMM_HIP_INCLUDE hip/nvidia_detail/nvidia_hip_runtime_api.h)
mark_as_advanced(SYMM_HIP_INCLUDE)
if(NOT SYMM_HIP_INCLUDE)
  message(FATAL_ERROR "SYMM_HIP_PLATFORM=nvidia needs HIP's headers for NVIDIA, on Debian 12 those "
                      "of the package libamdhip64-dev.")
endif()

add_library(symm_hip_on_nvidia INTERFACE)
target_compile_definitions(symm_hip_on_nvidia INTERFACE __HIP_PLATFORM_NVIDIA__=1)
target_include_directories(symm_hip_on_nvidia SYSTEM INTERFACE
                           "${PROJECT_SOURCE_DIR}/.cmake/hip/nvidia")
# A compiler that is told of its own folder looks for its headers in the wrong order.
if(NOT SYMM_HIP_INCLUDE STREQUAL "/usr/include")
  target_include_directories(symm_hip_on_nvidia SYSTEM INTERFACE "${SYMM_HIP_INCLUDE}")
endif()
target_link_libraries(symm_cuda_kernels PRIVATE symm_hip_on_nvidia)
target_link_libraries(symm_cuda PRIVATE symm_hip_on_nvidia)
target_sources(symm_cuda PRIVATE "${PROJECT_SOURCE_DIR}/.cmake/hip/nvidia/driver_entries.cpp")
message(STATUS "libsymm_cuda: made with HIP's calls (SYMM_HIP_PLATFORM=nvidia)")
