#pragma once

#include <cstdint>

#include "octavo/kernels/matrix.h"

namespace octavo::kernels {

/// Largest magnitudes of the rows [begin, end) of x, read once.
///
///   result          = max |x[m,k]|     over the rows of the range, 0 for an empty one
///   row_amax[m]     = max_k |x[m,k]|   (M), or null; only the range's entries are written
///   column_bits[k]  = max(column_bits[k], bits of |x[m,k]|)   (K), or null
///
/// column_bits holds bit patterns of |x| (value_of() reads them), which order like the values and
/// start at 0: integer maxima of several ranges can be joined in any order. NaN above Inf above
/// finite values: a NaN gives NaN. x needs a column stride of 1.
float amax(const ConstMatrix& x, std::int64_t begin, std::int64_t end, float* row_amax,
           std::uint32_t* column_bits);

}  // namespace octavo::kernels
