# Imported targets for LibTorch as it lies in a Python's torch wheel.
#
# find_package(Torch) is not used: with the CUDA wheel it fails where no CUDA toolkit is installed.
# Defines octavo_torch_cpu (torch_cpu + c10) and the cache variable OCTAVO_PYTHON.
# The wheel's libtorch_cpu.so needs libcudart and libcupti of the wheel's companion packages when
# it is a CUDA wheel; their folders go into the build rpath.

if(NOT OCTAVO_PYTHON)
  if(SKBUILD)  # pip builds with the Python that asks for it
    set(OCTAVO_PYTHON "${Python_EXECUTABLE}")
  elseif(EXISTS "${PROJECT_SOURCE_DIR}/.venv/bin/python")
    set(OCTAVO_PYTHON "${PROJECT_SOURCE_DIR}/.venv/bin/python")
  else()
    find_program(OCTAVO_PYTHON_FOUND NAMES python3 REQUIRED)
    set(OCTAVO_PYTHON "${OCTAVO_PYTHON_FOUND}")
  endif()
endif()
set(OCTAVO_PYTHON "${OCTAVO_PYTHON}" CACHE FILEPATH "The Python whose torch is built against")

# find_spec does not import torch, which would take seconds.
execute_process(
  COMMAND "${OCTAVO_PYTHON}" -c
          "import glob, importlib.metadata as m, importlib.util as u, os
s = u.find_spec('torch')
d = os.path.dirname(s.origin)
libs = sorted(glob.glob(os.path.join(d, '..', 'nvidia', '*', 'lib')))
print(d, m.version('torch').split('+')[0], ':'.join(map(os.path.realpath, libs)), sep='\\n')"
  OUTPUT_VARIABLE octavo_torch_probe
  RESULT_VARIABLE octavo_torch_result
  ERROR_VARIABLE octavo_torch_error
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT octavo_torch_result EQUAL 0)
  message(FATAL_ERROR "${OCTAVO_PYTHON} has no torch. Run ./run test once (it makes .venv), or "
                      "name a Python that has it: -DOCTAVO_PYTHON=/path/to/python (pip: install "
                      "torch first, then pip install --no-build-isolation).\n"
                      "${octavo_torch_error}")
endif()
string(REPLACE "\n" ";" octavo_torch_probe "${octavo_torch_probe};")
list(GET octavo_torch_probe 0 OCTAVO_TORCH_DIR)
list(GET octavo_torch_probe 1 OCTAVO_TORCH_VERSION)
list(GET octavo_torch_probe 2 octavo_nvidia_libs)
string(REPLACE ":" ";" OCTAVO_NVIDIA_LIB_DIRS "${octavo_nvidia_libs}")
message(STATUS "torch ${OCTAVO_TORCH_VERSION} in ${OCTAVO_TORCH_DIR}")

add_library(octavo_torch_cpu INTERFACE)
target_include_directories(octavo_torch_cpu SYSTEM INTERFACE
  "${OCTAVO_TORCH_DIR}/include" "${OCTAVO_TORCH_DIR}/include/torch/csrc/api/include")
target_link_libraries(octavo_torch_cpu INTERFACE
  "${OCTAVO_TORCH_DIR}/lib/libtorch_cpu.so" "${OCTAVO_TORCH_DIR}/lib/libc10.so")
target_link_options(octavo_torch_cpu INTERFACE
  "-Wl,-rpath,${OCTAVO_TORCH_DIR}/lib" "-Wl,--allow-shlib-undefined")
foreach(dir IN LISTS OCTAVO_NVIDIA_LIB_DIRS)
  target_link_options(octavo_torch_cpu INTERFACE "-Wl,-rpath,${dir}" "-Wl,-rpath-link,${dir}")
endforeach()

# torch_cuda + c10_cuda, for what the preset cuda builds. The wheel's companions bring the headers and
# libraries torch itself was built with.
if(OCTAVO_CUDA)
  file(GLOB octavo_nvidia_include "${OCTAVO_TORCH_DIR}/../nvidia/cu*/include")
  file(GLOB octavo_cublaslt "${OCTAVO_TORCH_DIR}/../nvidia/cu*/lib/libcublasLt.so.*")
  file(GLOB octavo_cudart "${OCTAVO_TORCH_DIR}/../nvidia/cu*/lib/libcudart.so.*")
  if(NOT octavo_cublaslt OR NOT EXISTS "${OCTAVO_TORCH_DIR}/lib/libtorch_cuda.so")
    message(FATAL_ERROR "OCTAVO_CUDA needs torch's CUDA wheel; ${OCTAVO_PYTHON} has another torch. "
                        "Remove .venv and run ./run test without OCTAVO_TORCH_INDEX.")
  endif()
  add_library(octavo_torch_cuda INTERFACE)
  target_include_directories(octavo_torch_cuda SYSTEM INTERFACE ${octavo_nvidia_include})
  target_link_libraries(octavo_torch_cuda INTERFACE octavo_torch_cpu
    -Wl,--no-as-needed "${OCTAVO_TORCH_DIR}/lib/libtorch_cuda.so" -Wl,--as-needed
    "${OCTAVO_TORCH_DIR}/lib/libc10_cuda.so" "${octavo_cublaslt}" "${octavo_cudart}")
endif()
