# Installs symm into a fresh folder, builds docs/examples/cpp against it, and runs the program.
#   cmake -DBUILD=... -DSOURCE=... -DTORCH=... -DWORK=... -P install_example.cmake
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/install" --component development)
run("${CMAKE_COMMAND}" -G Ninja -S "${SOURCE}/docs/examples/cpp" -B "${WORK}/build"
    "-DCMAKE_PREFIX_PATH=${WORK}/install" "-DSYMM_TORCH_DIR=${TORCH}"
    "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
run("${CMAKE_COMMAND}" --build "${WORK}/build")
run("${WORK}/build/all_reduce" "${WORK}/store")
