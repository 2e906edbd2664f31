#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/gemm/scaled_mm.h"

namespace octavo {

/// scaled_mm through at::_scaled_mm: hipBLASLt on AMD, cuBLASLt and CUTLASS on NVIDIA. Pairs:
/// tensorwise with tensorwise, rowwise with rowwise (a tensorwise operand's scale repeated).
///
/// at::_scaled_mm wants K and N in multiples of 16 (padded here, the result cut) and gives bf16 for
/// row scales: other output types are converted from it, so they carry bf16's rounding. A bias that
/// is not bf16 is added to that output. Expects what scaled_mm() has checked; M, N and K at
/// least 1.
at::Tensor scaled_mm_aten(const ScaledTensor& a, const ScaledTensor& b,
                          const MatmulOptions& options);

}  // namespace octavo
