# Installs symm into an empty folder, compiles its headers and docs/examples/cpp against that beside
# another package whose folders have the names of symm's own, and runs the program.
#   cmake -DBUILD=... -DSOURCE=... -DTORCH=... -DWORK=... -P install_example.cmake
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/install" --component development)

set(expected symm/ProcessGroupSymm.hpp symm/ProcessGroupSymmOptions.hpp symm/SymmetricTensor.hpp
             symm/inter_host.hpp symm/memory_provider.hpp)
file(GLOB_RECURSE installed RELATIVE "${WORK}/install/include" "${WORK}/install/include/*")
list(SORT installed)
if(NOT installed STREQUAL expected)
  message(FATAL_ERROR "include: expected ${expected}, got ${installed}")
endif()

# Headers of the other package: one for each header of symm, at the same path.
file(GLOB_RECURSE headers RELATIVE "${SOURCE}" "${SOURCE}/backend/*.hpp" "${SOURCE}/kernels/*.hpp"
     "${SOURCE}/symm_mem/*.hpp")
foreach(header IN LISTS headers)
  file(WRITE "${WORK}/neighbour/${header}" "#error \"${header} of another package\"\n")
endforeach()

run("${CMAKE_COMMAND}" -G Ninja -S "${SOURCE}/test/install" -B "${WORK}/build"
    "-DCMAKE_PREFIX_PATH=${WORK}/install" "-DSYMM_TORCH_DIR=${TORCH}"
    "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" "-DNEIGHBOUR=${WORK}/neighbour"
    "-DHEADERS=${installed}")
run("${CMAKE_COMMAND}" --build "${WORK}/build")
run("${WORK}/build/example/all_reduce" "${WORK}/store")
