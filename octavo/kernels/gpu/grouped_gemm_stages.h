#pragma once

#include <cuda.h>

#include "octavo/kernels/gpu/grouped_gemm.h"
#include "octavo/kernels/gpu/grouped_gemm_hopper.h"
#include "octavo/kernels/gpu/grouped_gemm_schedule.h"

/// The shared memory of grouped_gemm_kernel.h and what fills it: the ring of stages, the warp that
/// loads them and the tiles a cluster takes.
namespace octavo::gpu::grouped {

using namespace hopper;

inline constexpr int kStages = 4;
inline constexpr int kDepth = 128;  // bytes of the contraction in a stage
inline constexpr int kStep = 32;    // and in one wgmma
inline constexpr int kHalfA = 64 * kDepth, kHalfB = 128 * kDepth;
inline constexpr int kStageBytes = 2 * kHalfA + 2 * kHalfB;
inline constexpr int kConsumers = 2;  // warpgroups
inline constexpr int kThreads = 128 * (kConsumers + 1);
inline constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
inline constexpr int kChunk = 64;  // columns of out that a warp stages at a time
inline constexpr int kOutWarps = 4 * kConsumers;

/// Accumulation and Scaling as one: kBlocks adds every 128 of the contraction, times its scales.
enum class Sum : std::uint8_t { kFast, kFull, kBlocks };

struct Shared {
  alignas(1024) std::uint8_t stages[kStages][kStageBytes];
  std::uint8_t staging[kOutWarps][16 * kChunk * 2];
  // Of the tile at hand and the one before; kBlocks: of the stage at hand and the one before.
  float column_scale[kConsumers][2][kTileColumns];
  Group table[kMaxGroups + 1];
  std::uint64_t full[kStages], empty[kStages];
  Tile tile;                            // the next one, until all have read it
  std::uint64_t tile_full, tile_empty;  // tile_empty: rank 0's, for both blocks
};
static_assert(sizeof(Shared::staging) >= sizeof(Shared::table), "the table's scratch memory");
static_assert(sizeof(Shared) <= 227 * 1024);

struct Params {
  CUtensorMap a, b;
  Extents extents;
  const std::int32_t* offs;
  const float *a_scale, *b_scale;
  std::int64_t a_block, b_block, b_group, b_row;  // strides of block scales
  std::uint16_t* out;
  bool accumulate;  // kContraction: add to what out holds
  int* counter;
};

#ifdef OCTAVO_HOPPER_CODE

/// Tells the compiler that a value is the same in all lanes: products may not stand where lanes
/// could part.
OCTAVO_DEVICE int uniform(int value) { return __shfl_sync(0xFFFFFFFFu, value, 0); }

/// The ring of stages as one thread sees it.
struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  OCTAVO_DEVICE void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

/// One thread of the cluster's first block hands out the tiles, each when the one before has been
/// begun.
template <Product P>
OCTAVO_DEVICE void hand_out(const Params& p, Shared& shared) {
  Tiles<P> tiles(shared.table, p.extents);
  Turns turns(static_cast<int>(blockIdx.x / 2), static_cast<int>(gridDim.x / 2), tiles.all(),
              p.counter);
  std::uint32_t parity = 1;
  for (bool more = true; more; parity ^= 1) {
    barrier_wait(shared_address(&shared.tile_empty), parity);
    const int number = turns.next();
    more = number < tiles.all();
    Tile both[2] = {};
    if (more) {
      tiles.find(number, both);
    } else {
      both[0].length = both[1].length = -1;
    }
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      const Tile& t = both[rank];
      send(shared_address(&shared.tile), shared_address(&shared.tile_full), rank,
           make_int4(t.share_b, t.group, t.row, t.rows),
           make_int4(t.column, t.columns, t.k, t.length));
    }
  }
}

/// The block's next tile; false if there is none. For a whole warp, or for one thread alone.
template <bool Warp>
OCTAVO_DEVICE bool take_tile(Shared& shared, std::uint32_t& parity, Tile& tile) {
  barrier_wait(shared_address(&shared.tile_full), parity);
  parity ^= 1;
  tile = shared.tile;
  if (Warp) __syncwarp();
  if (!Warp || threadIdx.x % 32 == 0) barrier_arrive(shared_address(&shared.tile_empty), 0);
  return tile.length >= 0;
}

OCTAVO_DEVICE void load(const Params& p, Shared& shared, bool b_by_groups) {
  constexpr std::uint16_t kBoth = 3;
  const int rank = static_cast<int>(cluster_rank());
  Ring ring;
  Tile tile;
  std::uint32_t parity = 0;
  while (take_tile<false>(shared, parity, tile)) {
    const int b_row = tile.column + (b_by_groups ? tile.group * p.extents.columns : 0);
    const int halves_a = tile.rows > 64 ? 2 : 1;
    const int halves_b = tiles_along(tile.columns, 128);
    const std::uint32_t bytes = halves_a * kHalfA + halves_b * kHalfB;
    for (int k = 0; k < tile.length; k += kDepth) {
      const std::uint32_t full = shared_address(&shared.full[ring.stage]);
      const std::uint32_t a = shared_address(shared.stages[ring.stage]), b = a + 2 * kHalfA;
      barrier_wait(shared_address(&shared.empty[ring.stage]), ring.parity ^ 1);
      barrier_expect(full, bytes);
      if (tile.share_b) {
        for (int h = 0; h < halves_a; ++h) {
          copy_box(&p.a, a + h * kHalfA, full, tile.k + k, tile.row + h * 64);
        }
        if (rank < halves_b) {
          copy_box_to_cluster(&p.b, b + rank * kHalfB, full, tile.k + k, b_row + rank * 128, kBoth);
        }
      } else {
        if (rank < halves_a) {
          copy_box_to_cluster(&p.a, a + rank * kHalfA, full, tile.k + k, tile.row + rank * 64,
                              kBoth);
        }
        for (int h = 0; h < halves_b; ++h) {
          copy_box(&p.b, b + h * kHalfB, full, tile.k + k, b_row + h * 128);
        }
      }
      ring.advance();
    }
  }
}

#endif  // OCTAVO_HOPPER_CODE

}  // namespace octavo::gpu::grouped
