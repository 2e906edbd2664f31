#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/gemm/scaled_mm.h"

namespace octavo {

/// scaled_mm on the CPU by fp32 products; the definition other backends are measured against.
///
/// Scales that do not vary along K (tensorwise, rowwise): the bytes decoded to fp32 without the
/// scale, one fp32 product, then one pass
///     out[m,n] = round((acc[m,n] * scale_a[m]) * scale_b[n] + bias[n]).
/// Others (1x128, 128x128, mx1x32): both operands dequantised to fp32 with the scale folded in, one
/// fp32 product, then + bias and the rounding.
///
/// Expects what scaled_mm() has checked: CPU operands that fit together, M, N and K at least 1.
/// Memory: fp32 copies of both operands, and of the result where out_dtype is not fp32. The product
/// itself is at::mm, kept in fp32 also where torch.set_float32_matmul_precision() allows less; its
/// order of summation, and so its last bits, may depend on the number of threads.
at::Tensor scaled_mm_reference(const ScaledTensor& a, const ScaledTensor& b,
                               const MatmulOptions& options);

}  // namespace octavo
