#include "octavo/kernels/gpu/group_tiles.h"

#include "octavo/kernels/gpu/launch.h"
#include "octavo/kernels/gpu/tile.h"

namespace octavo::gpu {
namespace {

constexpr int kThreads = 256;  // groups handled at a time

// Where the groups before this one end.
struct Ends {
  std::int32_t row, column;
};

// v[t] becomes combine(v[0], ..., v[t]) for the first `count` threads; all call.
template <class T, class Combine>
OCTAVO_DEVICE T scan(T mine, T (&v)[kThreads], int count, const Combine& combine) {
  const int t = threadIdx.x;
  v[t] = mine;
  __syncthreads();
  for (int step = 1; step < count; step *= 2) {
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
  __shared__ std::int32_t largest[kThreads], tile_ends[kThreads];
  __shared__ Ends ends[kThreads];
  // Tiles end at multiples of 128 columns, so that a group that begins elsewhere is written in
  // whole lines from its second tile on: half-written sectors are what costs.
  const auto tile_of = [&](std::int64_t group, const Ends& before, std::int32_t i,
                           std::int32_t rows, std::int32_t columns) {
    const std::int32_t lead = before.column % kTile;
    const std::int64_t skipped = i == 0 ? 0 : std::int64_t{i} * kTile - lead;
    const std::int64_t most = i == 0 ? kTile - lead : kTile;
    GroupTile tile;
    tile.group = static_cast<std::int32_t>(group);
    tile.row = static_cast<std::int32_t>(before.row + skipped);
    tile.rows = clamp(rows - skipped, 0, most);
    tile.column = static_cast<std::int32_t>(before.column + skipped);
    tile.columns = clamp(columns - skipped, 0, most);
    tile.first = i == 0 && group < p.groups;
    return tile;
  };

  Ends carry = {0, 0};
  std::int32_t carry_tile = 0;
  for (std::int64_t base = 0; base < p.groups; base += kThreads) {
    const std::int64_t group = base + t;
    const bool present = group < p.groups;
    const int count = p.groups - base < kThreads ? static_cast<int>(p.groups - base) : kThreads;
    const std::int32_t asked = present ? clamp(p.offs[group], carry.row, p.rows) : carry.row;
    const std::int32_t end =
        scan(asked, largest, count, [](std::int32_t a, std::int32_t b) { return a > b ? a : b; });
    const std::int32_t rows = present ? end - (t > 0 ? largest[t - 1] : carry.row) : 0;
    const std::int32_t columns = (rows + p.alignment - 1) / p.alignment * p.alignment;
    const Ends own = scan(Ends{rows, columns}, ends, count, [](const Ends& a, const Ends& b) {
      return Ends{a.row + b.row, a.column + b.column};
    });
    const std::int32_t from = carry.column + own.column - columns;
    std::int32_t tiles = (from % kTile + columns + kTile - 1) / kTile;
    tiles = !present ? 0 : columns > 0 ? tiles : 1;
    scan(tiles, tile_ends, count, [](std::int32_t a, std::int32_t b) { return a + b; });
    if (present) {
      p.ends[group] = carry.row + own.row;
      if (p.aligned_ends) p.aligned_ends[group] = carry.column + own.column;
    }
    // The tiles of these groups, each found by its number.
    for (std::int32_t i = t; i < tile_ends[count - 1]; i += kThreads) {
      int low = 0, high = count - 1;  // the first group that ends past tile i
      while (low < high) {
        const int middle = (low + high) / 2;
        if (tile_ends[middle] > i) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      const Ends before = low > 0 ? ends[low - 1] : Ends{0, 0};
      const Ends at = {carry.row + before.row, carry.column + before.column};
      p.tiles[carry_tile + i] =
          tile_of(base + low, at, i - (low > 0 ? tile_ends[low - 1] : 0),
                  ends[low].row - before.row, ends[low].column - before.column);
    }
    const Ends last = ends[count - 1];
    carry = {carry.row + last.row, carry.column + last.column};
    carry_tile += tile_ends[count - 1];
    __syncthreads();
  }
  // What no group has; tiles that are left over are empty.
  const auto all = static_cast<std::int32_t>(group_tile_count(p.columns, p.groups));
  for (std::int32_t i = t; i < all - carry_tile; i += kThreads) {
    p.tiles[carry_tile + i] =
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
