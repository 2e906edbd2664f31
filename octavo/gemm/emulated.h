#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/gemm/scaled_mm.h"

namespace octavo {

/// scaled_mm by decoding and multiplying in bf16 or fp32: the same bytes and scales as the hardware
/// product, on any device, at the speed of bf16 or fp32. Operands are decoded, never reinterpreted,
/// so FNUZ bytes work on NVIDIA and OCP bytes on gfx942.
///
/// Tensor and row scales: decoded to bf16 without the scale (exact), product with fp32 output, then
///     out[m,n] = round((acc[m,n] * scale_a[m]) * scale_b[n] + bias[n]).
/// 1x128 and 128x128: dequantised to fp32, product in fp32 with TF32 off. MX: exponents folded into
/// bf16, exact for codes 3 to 246; smaller ones lose what lies below 2^-133, bf16's least number
/// (telling the host which codes there are would synchronise, and no CUDA graph could hold it).
///
/// Expects what scaled_mm() has checked; CUDA operands, M, N and K at least 1.
at::Tensor scaled_mm_emulated(const ScaledTensor& a, const ScaledTensor& b,
                              const MatmulOptions& options);

}  // namespace octavo
