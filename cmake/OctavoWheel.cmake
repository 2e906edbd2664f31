# What a wheel holds beside python/octavo: liboctavo.so, build_info.json, and libhwy, which Debian has as a
# shared library only. Installed by pip (pyproject.toml) and by cmake --install --component wheel.
#
# octavo_wheel(LIBRARY): a target, or the path of a library that is built already.

# Read before the library is loaded: a library of another torch crashes instead of explaining itself.
if(OCTAVO_CUDA)
  set(octavo_gpu true)
else()
  set(octavo_gpu false)
endif()
file(WRITE "${PROJECT_BINARY_DIR}/octavo/build_info.json"
  "{\"version\": \"${PROJECT_VERSION}\", \"torch\": \"${OCTAVO_TORCH_VERSION}\", \"gpu\": ${octavo_gpu}}\n")

function(octavo_wheel library)
  if(TARGET ${library})
    # torch lies beside the package. Its libraries are loaded by then; the path is for other tools.
    set_target_properties(${library} PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib")
    install(TARGETS ${library} LIBRARY DESTINATION octavo COMPONENT wheel)
    set(info "${PROJECT_BINARY_DIR}/octavo/build_info.json")
  else()
    get_filename_component(folder "${library}" DIRECTORY)
    install(FILES "${library}" DESTINATION octavo COMPONENT wheel)
    set(info "${folder}/build_info.json")
  endif()
  install(FILES "${info}" DESTINATION octavo COMPONENT wheel)
  find_library(octavo_hwy hwy REQUIRED)
  file(REAL_PATH "${octavo_hwy}" octavo_hwy_file)
  install(FILES "${octavo_hwy_file}" DESTINATION octavo RENAME libhwy.so.1 COMPONENT wheel)
endfunction()
