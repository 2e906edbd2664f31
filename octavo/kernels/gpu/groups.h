#pragma once

#include <cstdint>

/// Rows of x by groups whose blocks never share a scale.
namespace octavo::gpu {

/// Up to 128 rows of one group: what a block of threads works on. plan_groups() (group_tiles.h)
/// writes a table of them from offsets.
struct alignas(16) GroupTile {
  std::int32_t group = 0;    ///< E: of none, zeros
  std::int32_t row = 0;      ///< the first row of x, and of the rows layout
  std::int32_t rows = 0;     ///< how many
  std::int32_t column = 0;   ///< the first column of the transposed layout
  std::int32_t columns = 0;  ///< how many: the rows and the zeros that align the group's end
  std::int32_t first = 0;    ///< 1: the group's first tile; even an empty group has one
  std::int32_t unused[2] = {};
};

/// What forms a group. By default all rows of x are one.
///
/// Batch: x is `count` matrices of x.rows rows each, `stride` elements apart (experts' weights).
/// Layouts and scales of the matrices follow each other: rows (count, M, K), transposed (count, K,
/// M).
///
/// Offsets: a table of tiles on the device; `count` is the number of groups. The transposed layout
/// is (K, columns), each group at its own aligned start; padding, and rows of no group, are zeros
/// in both layouts. Such rows of x are not read.
struct Groups {
  std::int64_t count = 1;
  std::int64_t stride = 0;
  const GroupTile* tiles = nullptr;
  std::int64_t tile_count = 0;
  std::int64_t columns = 0;
};

}  // namespace octavo::gpu
