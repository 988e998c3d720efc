# Finds the libraries and headers of torch without a CUDA toolkit, which TorchConfig.cmake of a CUDA
# build of torch would demand.
#
# Where it looks, first hit wins:
#   SYMM_TORCH_DIR      a LibTorch folder or the torch folder of a Python environment
#   CMAKE_PREFIX_PATH   each entry as above
#   Python3_EXECUTABLE  the torch that this interpreter (default: python3) would import
#
# Defines LibTorch_VERSION ("2.13.0"), LibTorch_DIR_FOUND, and the imported targets LibTorch::c10,
# LibTorch::torch_cpu (brings the headers) and, in a Python environment, LibTorch::torch_python.

set(_libtorch_candidates ${SYMM_TORCH_DIR})
if(NOT _libtorch_candidates)
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
    # torch.utils.cmake_prefix_path is <torch>/share/cmake.
    list(APPEND _libtorch_candidates "${prefix}" "${prefix}/../..")
  endforeach()
  if(NOT Python3_EXECUTABLE)
    find_program(Python3_EXECUTABLE NAMES python3)
  endif()
  if(Python3_EXECUTABLE)
    # find_spec does not run torch. A build inside pip's isolation hides the environment's packages
    # by way of PYTHONPATH; the second question, with -E, sees past that.
    foreach(flags IN ITEMS "-B" "-BE")
      execute_process(
        COMMAND "${Python3_EXECUTABLE}" ${flags} -c
                "import importlib.util as u; s = u.find_spec('torch'); \
print(s.submodule_search_locations[0] if s and s.submodule_search_locations else '')"
        OUTPUT_VARIABLE _libtorch_of_python
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      if(_libtorch_of_python)
        list(APPEND _libtorch_candidates "${_libtorch_of_python}")
      endif()
    endforeach()
  endif()
endif()

set(LibTorch_DIR_FOUND "")
foreach(candidate IN LISTS _libtorch_candidates)
  if(EXISTS "${candidate}/lib/libtorch_cpu.so" AND EXISTS "${candidate}/include/torch")
    get_filename_component(LibTorch_DIR_FOUND "${candidate}" REALPATH)
    break()
  endif()
endforeach()

set(LibTorch_VERSION "")
if(LibTorch_DIR_FOUND)
  foreach(header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    set(header "${LibTorch_DIR_FOUND}/include/${header}")
    if(NOT LibTorch_VERSION AND EXISTS "${header}")
      set(_libtorch_parts "")
      foreach(part IN ITEMS MAJOR MINOR PATCH)
        file(STRINGS "${header}" line REGEX "^#define TORCH_VERSION_${part} [0-9]+" LIMIT_COUNT 1)
        if(line MATCHES " ([0-9]+)$")
          list(APPEND _libtorch_parts "${CMAKE_MATCH_1}")
        endif()
      endforeach()
      list(JOIN _libtorch_parts "." LibTorch_VERSION)
    endif()
  endforeach()
endif()

if(SYMM_TORCH_DIR)
  set(_libtorch_reason "SYMM_TORCH_DIR=${SYMM_TORCH_DIR} holds no lib/libtorch_cpu.so and "
                       "include/torch.")
else()
  set(_libtorch_reason
      "torch is not importable by ${Python3_EXECUTABLE}: install torch first and build with "
      "\"pip install --no-build-isolation .\", or give -DSYMM_TORCH_DIR=<LibTorch folder> "
      "(-DSYMM_BUILD_TORCH=OFF builds the torch-free part alone).")
endif()
list(JOIN _libtorch_reason "" _libtorch_reason)
if(LibTorch_FIND_REQUIRED AND NOT LibTorch_DIR_FOUND)
  message(FATAL_ERROR "${_libtorch_reason}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch
  REQUIRED_VARS LibTorch_DIR_FOUND LibTorch_VERSION
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "${_libtorch_reason}")

if(LibTorch_FOUND AND NOT TARGET LibTorch::torch_cpu)
  foreach(name IN ITEMS c10 torch_cpu torch_python)
    set(location "${LibTorch_DIR_FOUND}/lib/lib${name}.so")
    if(EXISTS "${location}")
      add_library(LibTorch::${name} SHARED IMPORTED)
      set_target_properties(LibTorch::${name} PROPERTIES IMPORTED_LOCATION "${location}"
                                                         IMPORTED_NO_SONAME FALSE)
    endif()
  endforeach()
  target_include_directories(
    LibTorch::c10 SYSTEM INTERFACE "${LibTorch_DIR_FOUND}/include"
                                   "${LibTorch_DIR_FOUND}/include/torch/csrc/api/include")
  target_compile_definitions(LibTorch::c10 INTERFACE USE_DISTRIBUTED USE_C10D)
  target_compile_features(LibTorch::c10 INTERFACE cxx_std_20)
  # libtorch_cpu of a CUDA build refers to CUDA libraries that need not be on this machine.
  target_link_options(LibTorch::c10 INTERFACE LINKER:--allow-shlib-undefined)
  target_link_libraries(LibTorch::torch_cpu INTERFACE LibTorch::c10)
  if(TARGET LibTorch::torch_python)
    target_link_libraries(LibTorch::torch_python INTERFACE LibTorch::torch_cpu)
  endif()

  # Builds of torch older than the new std::string layout say so in their own configuration.
  set(_libtorch_config "${LibTorch_DIR_FOUND}/share/cmake/Torch/TorchConfig.cmake")
  if(EXISTS "${_libtorch_config}")
    file(STRINGS "${_libtorch_config}" _libtorch_abi REGEX "_GLIBCXX_USE_CXX11_ABI=[01]"
         LIMIT_COUNT 1)
    if(_libtorch_abi MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
      message(FATAL_ERROR "The torch in ${LibTorch_DIR_FOUND} was built with "
                          "_GLIBCXX_USE_CXX11_ABI=0, which symm does not support; torch 2.11 and "
                          "newer use 1.")
    endif()
  endif()
endif()
