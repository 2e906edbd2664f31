#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/kernels/gpu/types.h"

namespace octavo {

/// x as GPU kernels see it: a matrix, or the first of a batch of them. fp32, bf16 or fp16.
gpu::Matrix gpu_matrix_of(const at::Tensor& x);

}  // namespace octavo
