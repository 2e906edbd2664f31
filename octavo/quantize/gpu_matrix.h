#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/kernels/gpu/types.h"

namespace octavo {

/// The type of a tensor of fp32, bf16 or fp16.
inline gpu::DType gpu_dtype(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return gpu::DType::kFP32;
  return tensor.scalar_type() == at::kBFloat16 ? gpu::DType::kBF16 : gpu::DType::kFP16;
}

/// x as GPU kernels see it: a matrix, or the first of a batch of them. fp32, bf16 or fp16.
gpu::Matrix gpu_matrix_of(const at::Tensor& x);

}  // namespace octavo
