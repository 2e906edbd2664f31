#pragma once

#include <cstdint>

#include "octavo/kernels/matrix.h"

namespace octavo::kernels {

/// Quantises the rows [begin, end) of x into the rows layout alone, reading x once from memory.
///
/// target.blocks: kWhole (inv_scale given) or kRow (inv_scale given; or null: the row's amax is
/// taken while the row is in cache and its scale written to target.scale). A given inv_scale of a
/// finite block promises that its elements are finite. x needs a column stride of 1. Numerics:
/// formats/scaling.h, bit for bit.
void quantize_rows(const ConstMatrix& x, std::int64_t begin, std::int64_t end,
                   const LayoutTarget& target);

}  // namespace octavo::kernels
