# Compile rules every target of ours shares.

# -fPIC: static libraries go into the shared one. -ffp-contract=off: GCC fuses a*b+c wherever FMA
# exists, and then the same source gives other bits on other CPUs.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# GCC collects its garbage less often: a sixth of the time of torch's headers, for 1 GB a compiler.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1000000>")
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-Wall;-Wextra;-Werror>")

# octavo_sources(VAR FOLDER...): every .cpp below the named folders of octavo/.
function(octavo_sources variable)
  set(found)
  foreach(folder IN LISTS ARGN)
    file(GLOB_RECURSE files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/octavo/${folder}/*.cpp")
    list(APPEND found ${files})
  endforeach()
  set(${variable} ${found} PARENT_SCOPE)
endfunction()

# octavo_unity(TARGET N): N sources in one translation unit. Torch's headers and the templates they
# leave pending cost 10 to 25 s a unit, our own code a second or two a file: this is what keeps a
# build in minutes. So names in anonymous namespaces are unique within a folder. Turn OCTAVO_UNITY
# off to compile file by file, as an editor's language server does.
option(OCTAVO_UNITY "Compile several sources in one translation unit" ON)
function(octavo_unity target batch)
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ${OCTAVO_UNITY} UNITY_BUILD_BATCH_SIZE ${batch})
endfunction()
