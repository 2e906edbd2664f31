#pragma once

#include <cstddef>

#include "octavo/kernels/gpu/groups.h"
#include "octavo/kernels/gpu/types.h"

namespace octavo::gpu {

/// What turns offsets on the device into tiles for the quantisers, without the host reading them.
///
/// offs[g] is where group g ends; it is clamped to [end of group g - 1, rows], so any numbers are
/// safe. In the transposed layout a group begins where the one before ends, aligned.
struct PlanGroupsArgs {
  const std::int32_t* offs = nullptr;    ///< (groups)
  std::int64_t groups = 0;               ///< any number
  std::int64_t rows = 0;                 ///< M
  int alignment = 16;                    ///< of a group's columns: 16, 32 or 128
  std::int64_t columns = 0;              ///< of the transposed layout, see below
  std::int32_t* ends = nullptr;          ///< (groups): clamped offs; the last is the rows of groups
  std::int32_t* aligned_ends = nullptr;  ///< (groups): ends in the transposed layout; may be null
  GroupTile* tiles = nullptr;            ///< (group_tile_count())
  float* zero = nullptr;                 ///< floats set to 0 in the same launch: amaxes
  std::int64_t zero_count = 0;
};

/// One launch. Tiles end where a multiple of 128 columns of the transposed layout or the group
/// does, so that all but a group's first and last write whole lines of it. Every group has a tile,
/// empty ones too. Columns no group has, and rows no group has, are in tiles of group `groups`.
/// Needs columns >= rows rounded up to the alignment + groups * alignment, a multiple of it, below
/// 2^31 - 128 * (groups + 2).
void plan_groups(const PlanGroupsArgs& args, Stream stream);

/// Tiles enough for any offsets.
OCTAVO_HOST_DEVICE constexpr std::int64_t group_tile_count(std::int64_t columns,
                                                           std::int64_t groups) {
  return columns / 128 + groups + 1;
}

}  // namespace octavo::gpu
