# Install rules of libsymm. Component "development": a library with its public headers and a CMake
# package, so that a LibTorch program can find_package(symm) and link symm::symm. Component
# "python": the same library inside the Python package; it is what a wheel holds.

if(SKBUILD)
  # In a Python environment torch lies beside the package, wherever the environment stands.
  set_target_properties(symm PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib")
  install(TARGETS symm LIBRARY DESTINATION torch_symm COMPONENT python)
else()
  # The libraries of torch stay where they are; the installed library finds them there.
  set_target_properties(symm PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
endif()

install(TARGETS symm EXPORT symmTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development
        FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/symm")
install(EXPORT symmTargets NAMESPACE symm:: DESTINATION "${package_dir}" COMPONENT development)

include(CMakePackageConfigHelpers)
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/.cmake/symmConfig.cmake.in" "${PROJECT_BINARY_DIR}/symmConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/symmConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/symmConfig.cmake"
              "${PROJECT_BINARY_DIR}/symmConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/.cmake/FindLibTorch.cmake"
        DESTINATION "${package_dir}" COMPONENT development)
