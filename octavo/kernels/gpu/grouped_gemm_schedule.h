#pragma once

#include <cstdint>

#include "octavo/kernels/gpu/platform.h"

/// Who computes what in grouped_gemm.cu: the table of groups, read from offs on the device, and the
/// tiles that each cluster of two blocks takes from it.
namespace octavo::gpu::grouped {

inline constexpr int kTileRows = 128;     // of out, a block
inline constexpr int kTileColumns = 256;  // of out, a block
/// Columns of tiles that are walked together: what 66 clusters read at a time is about as wide as
/// it is tall, so that it stays in the L2 cache.
inline constexpr int kPanel = 8;

/// kRows: groups choose rows of out. kContraction: groups choose columns of both operands.
enum class Product : std::uint8_t { kRows, kContraction };

/// A group and the number of its first tile. The table ends with a sentinel that holds the number
/// of all tiles and, in begin, the end of the last group.
struct alignas(16) Group {
  int first_tile, begin, end, index;
};

/// What a block computes: out[row .. row+rows, column .. column+columns], group g's own rows and
/// columns, over the contraction from k to k + length.
struct Tile {
  bool share_b;  // the cluster's blocks have the same columns, or else the same rows
  int group;
  int row, rows;        // rows: 1..128
  int column, columns;  // columns: 0 (nothing for this block) to 256
  int k, length;
};

struct Extents {
  int groups;
  int rows, columns, contraction;  // of out and of the sum; kRows: rows of all groups together
};

constexpr OCTAVO_DEVICE int tiles_along(int size, int tile) { return (size + tile - 1) / tile; }

/// Tiles of two blocks: pairs of rows of tiles that share b, and for the last row of tiles without
/// a partner pairs of columns that share a.
OCTAVO_DEVICE int cluster_tiles(int rows, int columns) {
  const int across = tiles_along(columns, kTileColumns), down = tiles_along(rows, kTileRows);
  return down / 2 * across + (down % 2) * ((across + 1) / 2);
}

/// Fills table[0 .. groups]; all threads of the block call it, `scratch` is another such table.
/// kContraction orders the groups by falling size: clusters take tiles in turn, so the costs that
/// differ last are the smallest.
template <Product P>
OCTAVO_DEVICE void make_table(const std::int32_t* offs, const Extents& x, Group* table,
                              Group* scratch) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  Group* target = P == Product::kRows ? table : scratch;
  const int limit = P == Product::kRows ? x.rows : x.contraction;
  if (thread < 32) {
    int end_before = 0, tiles_before = 0;
    for (int first = 0; first < x.groups; first += 32) {
      const int e = first + lane;
      int end = e < x.groups ? offs[e] : 0;
      end = min(max(end, end_before), limit);
      if (P == Product::kContraction) end &= ~15;  // of bad offsets only
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xFFFFFFFFu, end, step);
        if (lane >= step) end = max(end, other);
      }
      const int before = __shfl_up_sync(0xFFFFFFFFu, end, 1);
      const int begin = lane == 0 ? end_before : before;
      const int count = P == Product::kRows ? cluster_tiles(end - begin, x.columns) : 0;
      int sum = count;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
        if (lane >= step) sum += other;
      }
      if (e < x.groups) target[e] = {tiles_before + sum - count, begin, end, e};
      end_before = __shfl_sync(0xFFFFFFFFu, end, 31);
      tiles_before += __shfl_sync(0xFFFFFFFFu, sum, 31);
    }
    if (lane == 0) target[x.groups] = {tiles_before, end_before, end_before, x.groups};
  }
  __syncthreads();
  if constexpr (P == Product::kContraction) {
    const int tiles = cluster_tiles(x.rows, x.columns);
    for (int e = thread; e < x.groups; e += static_cast<int>(blockDim.x)) {
      const Group mine = scratch[e];
      const int size = mine.end - mine.begin;
      int rank = 0;
      for (int i = 0; i < x.groups; ++i) {
        const int other = scratch[i].end - scratch[i].begin;
        rank += other > size || (other == size && i < e);
      }
      table[rank] = {rank * tiles, mine.begin, mine.end, e};
    }
    if (thread == 0) table[x.groups] = {x.groups * tiles, 0, 0, x.groups};
    __syncthreads();
  }
}

/// Tells the compiler that a value is the same in all lanes: products may not stand where lanes
/// could part.
OCTAVO_DEVICE int uniform(int value) { return __shfl_sync(0xFFFFFFFFu, value, 0); }

/// The tiles of one cluster in turn. Every thread that walks gets the same ones.
template <Product P>
class Walk {
 public:
  OCTAVO_DEVICE Walk(const Group* table, const Extents& extents, int cluster, int clusters,
                     int rank)
      : group_(table), x_(extents), cluster_(cluster), clusters_(clusters), rank_(rank) {
    all_ = uniform(table[extents.groups].first_tile);
  }

  OCTAVO_DEVICE bool next(Tile& tile) {
    // Back and forth, so that nobody always has the larger tile of a turn.
    const int number = turn_ * clusters_ + (turn_ % 2 ? clusters_ - 1 - cluster_ : cluster_);
    ++turn_;
    if (uniform(number) >= all_) return false;
    while (number >= group_[1].first_tile) ++group_;
    const Group g = *group_;
    const unsigned local = static_cast<unsigned>(number - g.first_tile);
    const int rows = P == Product::kRows ? g.end - g.begin : x_.rows;
    const unsigned across = tiles_along(x_.columns, kTileColumns);
    const unsigned pairs = tiles_along(rows, kTileRows) / 2;
    unsigned down_tile, across_tile;
    tile.share_b = local < pairs * across;
    if (tile.share_b) {
      const unsigned panel = local / (pairs * kPanel), in_panel = local % (pairs * kPanel);
      const unsigned width = min(static_cast<unsigned>(kPanel), across - panel * kPanel);
      down_tile = in_panel / width * 2 + rank_;
      across_tile = panel * kPanel + in_panel % width;
    } else {
      down_tile = 2 * pairs;
      across_tile = (local - pairs * across) * 2 + rank_;
    }
    tile.group = g.index;
    const int row = static_cast<int>(down_tile) * kTileRows;
    tile.row = row + (P == Product::kRows ? g.begin : 0);
    tile.rows = min(kTileRows, rows - row);
    tile.column = static_cast<int>(across_tile) * kTileColumns;
    tile.columns = max(0, min(kTileColumns, x_.columns - tile.column));
    tile.k = P == Product::kRows ? 0 : g.begin;
    tile.length = P == Product::kRows ? x_.contraction : uniform(g.end - g.begin);
    tile.rows = uniform(tile.rows), tile.columns = uniform(tile.columns);
    return true;
  }

 private:
  const Group* group_;
  Extents x_;
  int cluster_, clusters_, rank_, all_;
  int turn_ = 0;
};

}  // namespace octavo::gpu::grouped
