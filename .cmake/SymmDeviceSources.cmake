# What a device library is made of, whatever the vendor; absolute paths.
#
#   SYMM_DEVICE_KERNELS  kernels/gpu/*/*.cu: for the vendor's compiler
#   SYMM_DEVICE_LAUNCH   kernels/gpu/launch/*.cpp: what launches the kernels
#   SYMM_DEVICE_RUNTIME  symm_mem/device/gpu_*.cpp
#   SYMM_DEVICE_SHARED   free of vendor headers: symm_core has them too, but a device library does
#                        not link that

file(GLOB SYMM_DEVICE_KERNELS CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/kernels/gpu/*/*.cu")
file(GLOB SYMM_DEVICE_LAUNCH CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/kernels/gpu/launch/*.cpp")
file(GLOB SYMM_DEVICE_RUNTIME CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/symm_mem/device/gpu_*.cpp")
set(SYMM_DEVICE_SHARED
    kernels/protocol/device_layout.cpp
    kernels/gpu/launch/norm_launch.cpp
    kernels/gpu/launch/share_division.cpp
    kernels/gpu/launch/transfer_schedule.cpp
    kernels/gpu/launch/wire_route.cpp
    kernels/protocol/signal_pad.cpp
    symm_mem/device/device_runtime.cpp
    symm_mem/device/memory_handle.cpp
    symm_mem/process/fork_guard.cpp
    symm_mem/device/multicast.cpp
    symm_mem/process/system_error.cpp)
list(TRANSFORM SYMM_DEVICE_SHARED PREPEND "${PROJECT_SOURCE_DIR}/")
list(REMOVE_ITEM SYMM_DEVICE_LAUNCH ${SYMM_DEVICE_SHARED})

# Beside libsymm, in the build, the wheel and the install tree: libsymm looks there first.
set(SYMM_DEVICE_LIBRARY_DIRECTORY "${PROJECT_BINARY_DIR}/backend")
function(symm_install_device_library)
  if(SKBUILD)
    install(${ARGV} DESTINATION torch_symm COMPONENT python)
  endif()
  install(${ARGV} DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
endfunction()

# Makes the shared library `target`, which exports one symbol: the runtime inside must not be
# mistaken for the process's own.
function(symm_link_device_library target)
  set_target_properties(
    ${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                         LINKER_LANGUAGE CXX
                         LIBRARY_OUTPUT_DIRECTORY "${SYMM_DEVICE_LIBRARY_DIRECTORY}"
                         LINK_DEPENDS "${PROJECT_SOURCE_DIR}/.cmake/device_library.map")
  target_link_options(${target} PRIVATE
                      "LINKER:--version-script=${PROJECT_SOURCE_DIR}/.cmake/device_library.map")
  if(NOT SYMM_SANITIZE)
    target_link_options(${target} PRIVATE LINKER:-z,defs)
  endif()
  symm_install_device_library(TARGETS ${target} LIBRARY)
endfunction()
