# Compile rules every target of ours shares.

# One set of flags for every translation unit, so that all of them can use one precompiled header:
#   -fPIC everywhere (CMake would give executables -fPIE, which GCC refuses a header built with);
#   -ffp-contract=off because GCC fuses a*b+c wherever FMA exists, and then the same source gives
#   other bits on other CPUs.
add_compile_options(-fPIC -ffp-contract=off -Wall -Wextra -Werror)

# octavo_sources(VAR FOLDER...): every .cpp below the named folders of octavo/.
function(octavo_sources variable)
  set(found)
  foreach(folder IN LISTS ARGN)
    file(GLOB_RECURSE files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/octavo/${folder}/*.cpp")
    list(APPEND found ${files})
  endforeach()
  set(${variable} ${found} PARENT_SCOPE)
endfunction()
