#pragma once

#include <cstdint>

#include "octavo/kernels/matrix.h"

namespace octavo::kernels {

/// Rows and columns of a tile: the largest block with a scale of its own.
inline constexpr std::int64_t kTile = 128;

/// Tiles of an (M, K) matrix, numbered along its rows of tiles: tile t covers the rows from
/// t / ceil(K / kTile) * kTile and the columns from t % ceil(K / kTile) * kTile.
constexpr std::int64_t tile_count(std::int64_t rows, std::int64_t columns) {
  return ((rows + kTile - 1) / kTile) * ((columns + kTile - 1) / kTile);
}

/// Quantises the tiles [begin, end) of x into one or both layouts, reading x once from memory.
///
/// rows: target with data (M, K); transposed: target with data (K, M); either may be null, both
/// blocks are those of x's rows x columns. kWhole, kRow and kColumn inv_scales are given; the
/// scales of the other blocks are computed from the tile and written. Any strides, any sizes.
/// Numerics: formats/scaling.h, bit for bit.
void quantize_tiles(const ConstMatrix& x, std::int64_t begin, std::int64_t end,
                    const LayoutTarget* rows, const LayoutTarget* transposed);

}  // namespace octavo::kernels
