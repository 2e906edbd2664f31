#pragma once

#include <cstdint>

#include "octavo/kernels/matrix.h"

namespace octavo::kernels {

/// An fp32 product (M, N) on its way to the output type.
struct EpilogueArgs {
  const float* acc = nullptr;       ///< (M, N), row-major
  std::int64_t columns = 0;         ///< N
  const float* scale_a = nullptr;   ///< scale of row m at m * scale_a_stride
  std::int64_t scale_a_stride = 0;  ///< 0 repeats one scale
  const float* scale_b = nullptr;   ///< scale of column n at n * scale_b_stride
  std::int64_t scale_b_stride = 0;  ///< 0 repeats one scale; otherwise 1
  const float* bias = nullptr;      ///< (N), or nullptr for none
  void* out = nullptr;              ///< (M, N), row-major; may be acc itself with kFloat32
  HighPrecision out_type = HighPrecision::kFloat32;
};

/// Applies scales and bias to rows [row_begin, row_end) and rounds once, to nearest even:
///
///   out[m,n] = round((acc[m,n] * scale_a[m]) * scale_b[n] + bias[n])
///
/// The order of the two multiplications is part of the contract: every backend whose epilogue is
/// ours gives these bits. NaN is written as the output type's quiet NaN (fp32: as it comes),
/// magnitudes beyond fp16 become infinite. No rows or no columns: nothing. Does not throw,
/// allocates nothing; the same bits on every instruction set.
void epilogue_rows(const EpilogueArgs& args, std::int64_t row_begin, std::int64_t row_end);

}  // namespace octavo::kernels
