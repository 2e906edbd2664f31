#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/kernels/gpu/amax.h"
#include "octavo/kernels/gpu/types.h"
#include "octavo/quantize/quantize_produced.h"

/// What operators hand to GPU kernels. Included by *_cuda.cpp files only.
namespace octavo::ops {

/// Whether GPU kernels take elements of `dtype`: fp32, bf16 or fp16.
inline bool is_gpu_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

inline gpu::DType gpu_dtype(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return gpu::DType::kFP32;
  return tensor.scalar_type() == at::kBFloat16 ? gpu::DType::kBF16 : gpu::DType::kFP16;
}

/// Where a kernel finds the amaxes of what it writes; null: nowhere.
inline gpu::WrittenAmax written_amax(const Amaxes* amaxes) {
  if (!amaxes) return {};
  const auto pointer = [](const at::Tensor& t) {
    return t.defined() ? t.mutable_data_ptr<float>() : nullptr;
  };
  return {pointer(amaxes->tensor), pointer(amaxes->rows), pointer(amaxes->columns)};
}

/// Contiguous and, as kernels that move 16 bytes at a time ask, 16-byte aligned: itself or a copy.
inline at::Tensor aligned(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  return reinterpret_cast<std::uintptr_t>(dense.const_data_ptr()) % 16 == 0 ? dense : dense.clone();
}

}  // namespace octavo::ops
