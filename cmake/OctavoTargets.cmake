# Compile rules every target of ours shares.

# One set of flags for every translation unit, so that all of them can use one precompiled header:
#   -fPIC everywhere (CMake would give executables -fPIE, which GCC refuses a header built with);
#   -ffp-contract=off because GCC fuses a*b+c wherever FMA exists, and then the same source gives
#   other bits on other CPUs.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fPIC;-ffp-contract=off;-Wall;-Wextra;-Werror>")

# octavo_sources(VAR FOLDER...): every .cpp below the named folders of octavo/.
function(octavo_sources variable)
  set(found)
  foreach(folder IN LISTS ARGN)
    file(GLOB_RECURSE files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/octavo/${folder}/*.cpp")
    list(APPEND found ${files})
  endforeach()
  set(${variable} ${found} PARENT_SCOPE)
endfunction()

# octavo_split_by_nn(SOURCES WITH WITHOUT): parts the sources that see torch::nn (through torch's
# headers or ours) from those that see tensors only. The latter take the precompiled header that
# costs 2 s a file instead of 7.
function(octavo_split_by_nn octavo_list with without)
  set(nn)
  set(tensors)
  foreach(octavo_file IN LISTS ${octavo_list})
    file(STRINGS "${octavo_file}" hits LIMIT_COUNT 1 REGEX
      "^#include [<\"](torch/(utils|nn/|torch)|octavo/nn/|octavo/models/(llama|kv_cache|generate)\\.h|octavo/train/(trainer|prepare|baseline|run_header)\\.h)")
    string(REGEX REPLACE "\\.cpp$" ".h" own_header "${octavo_file}")
    if(NOT hits AND EXISTS "${own_header}")
      file(STRINGS "${own_header}" hits LIMIT_COUNT 1 REGEX
        "^#include [<\"](torch/(utils|nn/|torch)|octavo/nn/|octavo/models/(llama|kv_cache|generate)\\.h)")
    endif()
    if(hits)
      list(APPEND nn "${octavo_file}")
    else()
      list(APPEND tensors "${octavo_file}")
    endif()
  endforeach()
  set(${with} ${nn} PARENT_SCOPE)
  set(${without} ${tensors} PARENT_SCOPE)
endfunction()
