# Finds the header nlohmann/json.hpp: the system's, else the one inside the Python package
# nlohmann-json of the interpreter Python3_EXECUTABLE. Defines the target symm_nlohmann_json.

set(_json_hints "")
if(NOT Python3_EXECUTABLE)
  find_program(Python3_EXECUTABLE NAMES python3)
endif()
if(Python3_EXECUTABLE AND NOT NlohmannJson_INCLUDE_DIR)
  execute_process(
    COMMAND "${Python3_EXECUTABLE}" -B -c
            "import importlib.util as u; s = u.find_spec('nlohmann_json'); \
print(s.submodule_search_locations[0] if s and s.submodule_search_locations else '')"
    OUTPUT_VARIABLE _json_package
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(_json_package)
    set(_json_hints "${_json_package}/include" "${_json_package}")
  endif()
endif()

# A path inside a build environment that pip has removed since is looked for again.
if(NlohmannJson_INCLUDE_DIR AND NOT EXISTS "${NlohmannJson_INCLUDE_DIR}/nlohmann/json.hpp")
  unset(NlohmannJson_INCLUDE_DIR CACHE)
endif()
find_path(NlohmannJson_INCLUDE_DIR nlohmann/json.hpp PATHS ${_json_hints})
mark_as_advanced(NlohmannJson_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  NlohmannJson
  REQUIRED_VARS NlohmannJson_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "nlohmann/json.hpp is missing: install the system package \
nlohmann-json3-dev or the Python package nlohmann-json.")

if(NlohmannJson_FOUND AND NOT TARGET symm_nlohmann_json)
  add_library(symm_nlohmann_json INTERFACE)
  target_include_directories(symm_nlohmann_json SYSTEM INTERFACE "${NlohmannJson_INCLUDE_DIR}")
endif()
