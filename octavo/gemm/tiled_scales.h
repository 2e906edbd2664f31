#pragma once

#include <ATen/core/Tensor.h>

/// MX scales of grouped products in the tiles Blackwell's products read: 128 rows x 4 blocks, 512
/// bytes, element (r, c) of a tile at (r % 32) * 16 + r / 32 * 4 + c; tiles row by row. Every
/// group's tiles are its own. Offsets stay on the device; what no group has is 0 (2^-127).
namespace octavo {

/// Scales (M, C) of rows by groups, ends offs (E): (R, C4) with R = M rounded up to 128, + 128 E,
/// and C4 = C rounded up to 4. A group begins at the row where the one before, rounded up to 128,
/// ends.
at::Tensor tiled_scales_by_rows(const at::Tensor& scale, const at::Tensor& offs);

/// Scales (N, C) of groups of columns, ends (E) counted in scales: (N128, C + 4 E), N128 = N
/// rounded up to 128. A group begins N128 * (the columns of those before, each rounded up to 4)
/// bytes in.
at::Tensor tiled_scales_by_columns(const at::Tensor& scale, const at::Tensor& ends);

/// Scales (E, N, C) of experts' weights: (E, N128 * C4).
at::Tensor tiled_scales_of_experts(const at::Tensor& scale);

}  // namespace octavo
