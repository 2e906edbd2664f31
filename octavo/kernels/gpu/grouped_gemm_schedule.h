#pragma once

#include <cstdint>

#include "octavo/kernels/gpu/platform.h"

/// Who computes what in grouped_gemm.cu: the table of groups, read from offs on the device, and the
/// tiles that clusters of two blocks take from it.
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
/// columns, over the contraction from k to k + length. A negative length: nothing more.
struct alignas(16) Tile {
  int share_b;  // the cluster's blocks have the same columns, or else the same rows
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

/// Finds tiles by their number; numbers must not fall.
template <Product P>
class Tiles {
 public:
  OCTAVO_DEVICE Tiles(const Group* table, const Extents& extents)
      : group_(table), x_(extents), all_(table[extents.groups].first_tile) {}

  OCTAVO_DEVICE int all() const { return all_; }

  /// The number's tile for both blocks of a cluster.
  OCTAVO_DEVICE void find(int number, Tile (&tiles)[2]) {
    while (number >= group_[1].first_tile) ++group_;
    const Group g = *group_;
    const unsigned local = static_cast<unsigned>(number - g.first_tile);
    const int rows = P == Product::kRows ? g.end - g.begin : x_.rows;
    const unsigned across = tiles_along(x_.columns, kTileColumns);
    const unsigned pairs = tiles_along(rows, kTileRows) / 2;
    const bool share_b = local < pairs * across;
    unsigned down_tile, across_tile;  // of the first block
    if (share_b) {
      const unsigned panel = local / (pairs * kPanel), in_panel = local % (pairs * kPanel);
      const unsigned width = min(static_cast<unsigned>(kPanel), across - panel * kPanel);
      down_tile = in_panel / width * 2;
      across_tile = panel * kPanel + in_panel % width;
    } else {
      down_tile = 2 * pairs;
      across_tile = (local - pairs * across) * 2;
    }
#pragma unroll
    for (int rank = 0; rank < 2; ++rank) {
      const int row = (static_cast<int>(down_tile) + (share_b ? rank : 0)) * kTileRows;
      const int column = (static_cast<int>(across_tile) + (share_b ? 0 : rank)) * kTileColumns;
      Tile& tile = tiles[rank];
      tile.share_b = share_b, tile.group = g.index;
      tile.row = row + (P == Product::kRows ? g.begin : 0);
      tile.rows = min(kTileRows, rows - row);
      tile.column = column;
      tile.columns = max(0, min(kTileColumns, x_.columns - column));
      tile.k = P == Product::kRows ? 0 : g.begin;
      tile.length = P == Product::kRows ? x_.contraction : g.end - g.begin;
    }
  }

 private:
  const Group* group_;
  Extents x_;
  int all_;
};

/// The numbers of the tiles that a cluster takes in turn. The first is its own index. Without a
/// counter the others are spread evenly; with one each cluster takes the next number when it begins
/// a tile, so that tiles of unlike cost even out. The counter is zero before, and zero again when
/// all have ended.
class Turns {
 public:
  OCTAVO_DEVICE Turns(int cluster, int clusters, int all, int* counter)
      : counter_(counter), cluster_(cluster), clusters_(clusters), all_(all) {}

  /// A number, or one of at least `all` when there are no more; then not to be called again.
  OCTAVO_DEVICE int next() {
    const int turn = turn_++;
    if (turn == 0) return cluster_ < all_ || !counter_ ? cluster_ : take();
    if (counter_) return take();
    // Back and forth, so that nobody always has the larger tile of a turn.
    return turn * clusters_ + (turn % 2 ? clusters_ - 1 - cluster_ : cluster_);
  }

 private:
  OCTAVO_DEVICE int take() {
    const int taken = atomicAdd(counter_, 1);
    // Each cluster takes one number too many; this is the last of them.
    if (taken == max(all_ - clusters_, 0) + clusters_ - 1) atomicExch(counter_, 0);
    return taken + clusters_;
  }

  int* counter_;
  int cluster_, clusters_, all_;
  int turn_ = 0;
};

}  // namespace octavo::gpu::grouped
