#pragma once

#include <cstdint>

#include "octavo/kernels/matrix.h"

namespace octavo::kernels::cpu {

/// out[k] = sum over m of x[m,k] for columns [column_begin, column_end), in fp32: a bias gradient.
///
/// x: (M, K), any strides. out: (K) fp32. Each column is added up in runs of kColumnSumRun rows,
/// then run by run, so that the rounding error grows with M / kColumnSumRun + kColumnSumRun instead
/// of M, and the result does not depend on how columns are split over threads. M = 0: zeros. NaN
/// and Inf go where fp32 addition takes them. The same bits on every instruction set. Does not
/// throw, allocates nothing.
void column_sum(const ConstMatrix& x, float* out, std::int64_t column_begin,
                std::int64_t column_end);

inline constexpr std::int64_t kColumnSumRun = 256;

}  // namespace octavo::kernels::cpu
