# The GPU kernels as a static library, octavo_kernels_gpu, that links neither torch nor a CUDA runtime:
# liboctavo.so takes torch's, the kernels' own tests and bench a static one, so that they run wherever
# there is a driver. Compiling needs no GPU.

# The a of 90a: wgmma and other instructions only this architecture has. -real: machine code
# alone, no PTX for a driver to compile at start.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "90a-real" CACHE STRING "GPU architectures to compile for")
endif()
# On PATH, in a toolkit's usual place, or beside torch's CUDA libraries (requirements-cuda.txt).
if(NOT CMAKE_CUDA_COMPILER)
  file(GLOB octavo_wheel_nvcc "${OCTAVO_TORCH_DIR}/../nvidia/cu*/bin/nvcc")
  find_program(OCTAVO_NVCC NAMES nvcc HINTS /usr/local/cuda/bin)
  if(OCTAVO_NVCC)
    set(CMAKE_CUDA_COMPILER "${OCTAVO_NVCC}")
  elseif(octavo_wheel_nvcc)
    list(GET octavo_wheel_nvcc 0 CMAKE_CUDA_COMPILER)
  else()
    message(FATAL_ERROR "OCTAVO_CUDA needs nvcc: install the CUDA 13.0 toolkit, or into "
                        "${OCTAVO_PYTHON}'s environment: pip install -r requirements-cuda.txt")
  endif()
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

file(GLOB octavo_gpu_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/octavo/kernels/gpu/*.cu")
add_library(octavo_kernels_gpu STATIC ${octavo_gpu_sources})
target_include_directories(octavo_kernels_gpu PUBLIC "${PROJECT_SOURCE_DIR}")
set_target_properties(octavo_kernels_gpu PROPERTIES
  CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON POSITION_INDEPENDENT_CODE ON
  CUDA_RUNTIME_LIBRARY None)
# No --use_fast_math, ever: it flushes subnormals to zero and approximates division.
target_compile_options(octavo_kernels_gpu PRIVATE
  "$<$<COMPILE_LANGUAGE:CUDA>:-O3;-Xcompiler=-Wall,-Wextra,-Werror;-Werror=all-warnings>")
