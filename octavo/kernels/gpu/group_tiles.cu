#include "octavo/kernels/gpu/group_tiles.h"

#include "octavo/kernels/gpu/launch.h"
#include "octavo/kernels/gpu/tile.h"

namespace octavo::gpu {
namespace {

constexpr int kThreads = 256;  // groups handled at a time

// Where the groups before this one end.
struct Ends {
  std::int32_t row, column, tile;
};

// v[t] becomes combine(v[0], ..., v[t]).
template <class T, class Combine>
OCTAVO_DEVICE T scan(T mine, T (&v)[kThreads], const Combine& combine) {
  const int t = threadIdx.x;
  v[t] = mine;
  __syncthreads();
  for (int step = 1; step < kThreads; step *= 2) {
    const T before = t >= step ? v[t - step] : mine;
    const T own = v[t];
    __syncthreads();
    if (t >= step) v[t] = combine(before, own);
    __syncthreads();
  }
  return v[t];
}

OCTAVO_DEVICE std::int32_t clamp(std::int64_t x, std::int64_t low, std::int64_t high) {
  return static_cast<std::int32_t>(x < low ? low : x > high ? high : x);
}

// Block 0 plans; the others clear.
__global__ void __launch_bounds__(kThreads) plan_groups_kernel(const PlanGroupsArgs p) {
  const int t = threadIdx.x;
  if (blockIdx.x > 0) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x - 1) * kThreads;
    std::int64_t i = static_cast<std::int64_t>(blockIdx.x - 1) * kThreads + t;
    for (; i < p.zero_count; i += step) p.zero[i] = 0.0f;
    return;
  }
  __shared__ std::int32_t largest[kThreads];
  __shared__ Ends ends[kThreads];
  const auto tile_of = [&](std::int64_t group, const Ends& before, std::int32_t i,
                           std::int32_t rows, std::int32_t columns) {
    GroupTile tile;
    tile.group = static_cast<std::int32_t>(group);
    tile.row = before.row + i * kTile;
    tile.rows = clamp(rows - std::int64_t{i} * kTile, 0, kTile);
    tile.column = before.column + i * kTile;
    tile.columns = clamp(columns - std::int64_t{i} * kTile, 0, kTile);
    tile.first = i == 0 && group < p.groups;
    return tile;
  };

  Ends carry = {0, 0, 0};
  for (std::int64_t base = 0; base < p.groups; base += kThreads) {
    const std::int64_t group = base + t;
    const bool present = group < p.groups;
    const std::int32_t asked = present ? clamp(p.offs[group], carry.row, p.rows) : carry.row;
    const std::int32_t end =
        scan(asked, largest, [](std::int32_t a, std::int32_t b) { return a > b ? a : b; });
    const std::int32_t rows = end - (t > 0 ? largest[t - 1] : carry.row);
    const std::int32_t columns = (rows + p.alignment - 1) / p.alignment * p.alignment;
    std::int32_t tiles = (rows + kTile - 1) / kTile;
    tiles = !present ? 0 : tiles > 0 ? tiles : 1;
    const Ends own = scan(Ends{rows, columns, tiles}, ends, [](const Ends& a, const Ends& b) {
      return Ends{a.row + b.row, a.column + b.column, a.tile + b.tile};
    });
    if (present) {
      p.ends[group] = carry.row + own.row;
      if (p.aligned_ends) p.aligned_ends[group] = carry.column + own.column;
    }
    // The tiles of these groups, each found by its number.
    for (std::int32_t i = t; i < ends[kThreads - 1].tile; i += kThreads) {
      int low = 0, high = kThreads - 1;  // the first group that ends past tile i
      while (low < high) {
        const int middle = (low + high) / 2;
        if (ends[middle].tile > i) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      const Ends before = low > 0 ? ends[low - 1] : Ends{0, 0, 0};
      const Ends at = {carry.row + before.row, carry.column + before.column, 0};
      p.tiles[carry.tile + i] = tile_of(base + low, at, i - before.tile, ends[low].row - before.row,
                                        ends[low].column - before.column);
    }
    const Ends last = ends[kThreads - 1];
    carry = {carry.row + last.row, carry.column + last.column, carry.tile + last.tile};
    __syncthreads();
  }
  // What no group has; tiles that are left over are empty.
  const auto count = static_cast<std::int32_t>(group_tile_count(p.columns, p.groups));
  for (std::int32_t i = t; i < count - carry.tile; i += kThreads) {
    p.tiles[carry.tile + i] =
        tile_of(p.groups, carry, i, static_cast<std::int32_t>(p.rows) - carry.row,
                static_cast<std::int32_t>(p.columns) - carry.column);
  }
}

}  // namespace

void plan_groups(const PlanGroupsArgs& args, Stream stream) {
  const std::int64_t clearing = ceil_div(args.zero_count, 4 * kThreads);
  const std::int64_t most = 2 * multiprocessors();
  plan_groups_kernel<<<static_cast<unsigned>(1 + (clearing < most ? clearing : most)), kThreads, 0,
                       static_cast<NativeStream>(stream)>>>(args);
}

}  // namespace octavo::gpu
