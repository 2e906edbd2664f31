#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/quantize/gpu_matrix.h"
#include "octavo/quantize/gpu_operand.h"

/// What operators hand to GPU kernels. Included by *_cuda.cpp files only.
namespace octavo::ops {

/// Whether GPU kernels take elements of `dtype`: fp32, bf16 or fp16.
inline bool is_gpu_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

/// Contiguous and, as kernels that move 16 bytes at a time ask, 16-byte aligned: itself or a copy.
inline at::Tensor aligned(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  return reinterpret_cast<std::uintptr_t>(dense.const_data_ptr()) % 16 == 0 ? dense : dense.clone();
}

}  // namespace octavo::ops
