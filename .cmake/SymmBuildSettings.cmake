# Compiler settings that hold for every target of the project.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# No fused multiply-add where the source has none: in one instruction set and not in another it
# would change result bits.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-ffp-contract=off>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 warns of overlapping copies inside std::string's operator+ (its bug 105651).
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>")
endif()

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(SYMM_CCACHE ccache)
  if(SYMM_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${SYMM_CCACHE}")
  endif()
endif()

if(SYMM_SANITIZE)
  if(NOT SYMM_SANITIZE MATCHES "^(address|undefined|address,undefined|thread)$")
    message(FATAL_ERROR "SYMM_SANITIZE must be address, undefined, address,undefined or thread, "
                        "but is \"${SYMM_SANITIZE}\".")
  endif()
  # More optimisation or more of -g takes several times as long to compile and finds no more.
  add_compile_options(
    "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SYMM_SANITIZE};-fno-omit-frame-pointer;-O1;-g1>")
  add_link_options("-fsanitize=${SYMM_SANITIZE}")
  if(SYMM_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC says that it does not model fences; that stays visible without ending the build.
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wno-error=tsan>")
  else()
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>")
  endif()
  if(SYMM_SANITIZE MATCHES "undefined")
    # The vptr check opens a pipe to learn whether memory can be read, and calls every object
    # invalid when it gets none: tests that exhaust the file descriptors would fail for that.
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=vptr>")
  endif()
endif()

# Headers are most of what a compiler reads here, torch's above all, so that several sources share
# one translation unit. Names of unnamed namespaces are therefore unique in a folder.
option(SYMM_UNITY_BUILD "Compile several sources of a folder as one" ON)

# The rest of it is compiled once; what is made of torch's takes half a gigabyte of the build folder.
option(SYMM_PRECOMPILE_HEADERS "Compile headers of torch and of the tests once" ON)
# ccache looks into what includes them only with this (and with the CCACHE_SLOPPINESS of
# .ci/build.sh).
set(SYMM_PRECOMPILED_OPTIONS $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)

# The sources of each folder that bring no compile options of their own become one unit.
function(symm_unite_folders target)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(folder "${source}" DIRECTORY)
    file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${folder}")
    string(MAKE_C_IDENTIFIER "${folder}" group)
    set_source_files_properties("${source}" TARGET_DIRECTORY ${target}
                                PROPERTIES UNITY_GROUP "${group}")
  endforeach()
  set_target_properties(
    ${target}
    PROPERTIES UNITY_BUILD ${SYMM_UNITY_BUILD} UNITY_BUILD_MODE GROUP
               UNITY_BUILD_CODE_BEFORE_INCLUDE "// NOLINTNEXTLINE(bugprone-suspicious-include)")
endfunction()
