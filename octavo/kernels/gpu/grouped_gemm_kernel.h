#pragma once

#include <cuda.h>

#include "octavo/kernels/gpu/grouped_gemm.h"
#include "octavo/kernels/gpu/grouped_gemm_hopper.h"
#include "octavo/kernels/gpu/grouped_gemm_schedule.h"

/// One persistent kernel serves both products. Rows of all groups are one matrix, experts' weights
/// are one matrix of E*N rows, and groups of the contraction are ranges of columns: so two tensor
/// maps made on the host describe everything, and a group is only coordinates.
///
/// A block computes 128 x 256 of out: one warp loads boxes of 128 bytes of the contraction into a
/// ring of stages, two warpgroups multiply 64 x 256 each. Two blocks make a cluster, each loads
/// half of the operand they share into both (see Tiles). What was measured and what did not help:
/// docs/experiments/2026-11-29-grouped-gemm.md.
///
/// Rows past a group's end are multiplied and not written; a warpgroup, half of b or of a that has
/// none but such is not loaded or multiplied.
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

/// A warpgroup's view of the stages.
struct Consumer {
  Shared& shared;
  Ring ring;
  int warpgroup;         // 0 or 1
  int scale_buffer = 0;  // which of column_scale is to be written next

  OCTAVO_DEVICE void wait() { barrier_wait(shared_address(&shared.full[ring.stage]), ring.parity); }
  /// This warp is done with the stage: so say two lanes to the two blocks that load into it.
  OCTAVO_DEVICE void release(int stage) {
    const unsigned lane = threadIdx.x & 31;
    if (lane < 2) barrier_arrive(shared_address(&shared.empty[stage]), lane);
  }
  OCTAVO_DEVICE std::uint64_t a() const {
    return rows_descriptor(shared_address(shared.stages[ring.stage]) + warpgroup * kHalfA);
  }
  OCTAVO_DEVICE std::uint64_t b() const {
    return rows_descriptor(shared_address(shared.stages[ring.stage]) + 2 * kHalfA);
  }
  /// Zeros the stage's columns from `begin` to `end`, which belong to the next group: of both
  /// operands, whose NaN would survive a product with zero. The other warpgroup zeros b too; both
  /// may.
  OCTAVO_DEVICE void zero_columns(int begin, int end, int b_rows) {
    const int thread = static_cast<int>(threadIdx.x) & 127;
    const std::uint32_t b = shared_address(shared.stages[ring.stage]) + 2 * kHalfA;
    const std::uint32_t a = b - (2 - warpgroup) * kHalfA;
    for (int piece = begin / 16; piece < end / 16; ++piece) {
      const auto place = [&](int row) {  // the copy's swizzle
        return static_cast<std::uint32_t>(row * kDepth + ((piece ^ (row & 7)) << 4));
      };
      if (thread < 64) zero16_shared(a + place(thread));
      for (int row = thread; row < b_rows; row += 128) zero16_shared(b + place(row));
    }
    fence_async();
    named_barrier(1 + warpgroup, 128);
  }
};

/// d = or += the product of 32 (stage: 128) columns from a and b on; 64 x 256 or (not Wide) 64 x
/// 128.
template <bool Wide>
OCTAVO_DEVICE void multiply(float* d, std::uint64_t a, std::uint64_t b, bool accumulate) {
  if constexpr (Wide) {
    wgmma_m64n256k32(d, a, b, accumulate);
  } else {
    wgmma_m64n128k32(d, a, b, accumulate);
  }
}
template <bool Wide>
OCTAVO_DEVICE void multiply_stage(float* d, std::uint64_t a, std::uint64_t b, bool accumulate) {
#pragma unroll
  for (int i = 0; i < kDepth; i += kStep) {
    multiply<Wide>(d, a + (i >> 4), b + (i >> 4), accumulate || i > 0);
  }
}

/// How parts of 128 of the contraction (64 rows x 128 columns of a warpgroup) reach the sum:
/// unscaled, or (kBlocks, below) times the scales of their blocks.
template <Product P, Sum S, bool Wide>
struct Scales {
  OCTAVO_DEVICE Scales(const Params&, const Tile&, int /*warpgroup*/) {}
  OCTAVO_DEVICE void begin(Consumer&) {}
  OCTAVO_DEVICE void load_next() {}
  OCTAVO_DEVICE void add(float* acc, const float (&part)[64], int /*half*/) const {
#pragma unroll
    for (int j = 0; j < 64; ++j) acc[j] += part[j];
  }
};

/// Block scales come straight from memory, those of a stage during the products of the one before.
/// A thread needs two of a's (its rows lane / 4 and + 8) and, of b's, one for each half where they
/// span 128 rows of b, or else one for each of its columns: these go through shared memory.
template <Product P, bool Wide>
struct Scales<P, Sum::kBlocks, Wide> {
  static constexpr bool kColumns = P == Product::kContraction;
  static constexpr int kHalves = Wide ? 2 : 1;
  const float *a_low, *a_high, *b;
  std::int64_t a_step, b_step;  // to the next block
  std::int64_t b_half;          // to the next 128 columns of the tile
  float next_low, next_high, next_b[kHalves];
  float low, high, of_half[kHalves];
  const float* columns = nullptr;  // this thread's first, in shared memory

  OCTAVO_DEVICE Scales(const Params& p, const Tile& tile, int warpgroup) {
    const int thread = static_cast<int>(threadIdx.x) & 127, lane = thread & 31;
    // Rows that do not exist take the last one's: they are not written, and nothing is read past
    // the end.
    const int row = 64 * warpgroup + thread / 32 * 16 + lane / 4, last = tile.rows - 1;
    const std::int64_t block = kColumns ? tile.k / kDepth : 0;
    const float* a = p.a_scale + tile.row + block * p.a_block;
    a_low = a + min(row, last), a_high = a + min(row + 8, last), a_step = p.a_block;
    if constexpr (kColumns) {
      b = p.b_scale + tile.column + min(thread, tile.columns - 1) + block * p.b_block;
      b_step = p.b_block, b_half = thread + 128 < tile.columns ? 128 : 0;
    } else {
      b = p.b_scale + tile.group * p.b_group + tile.column / 128 * p.b_row;
      b_step = 1, b_half = p.b_row;
    }
    if (tile.length > 0) load_next();
  }
  OCTAVO_DEVICE void load_next() {
    next_low = load_early(a_low), next_high = load_early(a_high);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) next_b[h] = load_early(b + h * b_half);
    a_low += a_step, a_high += a_step, b += b_step;
  }
  /// What was loaded becomes the stage's. Two buffers: whoever writes one has passed the barrier
  /// that all reach after reading it.
  OCTAVO_DEVICE void begin(Consumer& c) {
    low = next_low, high = next_high;
    if constexpr (kColumns) {
      const int thread = static_cast<int>(threadIdx.x) & 127;
      float* buffer = c.shared.column_scale[c.warpgroup][c.scale_buffer];
      c.scale_buffer ^= 1;
#pragma unroll
      for (int h = 0; h < kHalves; ++h) buffer[thread + 128 * h] = next_b[h];
      named_barrier(1 + c.warpgroup, 128);
      columns = buffer + 2 * (thread & 3);
    } else {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) of_half[h] = next_b[h];
    }
  }
  OCTAVO_DEVICE void add(float* acc, const float (&part)[64], int half) const {
    float2 s = kColumns ? float2{} : float2{low * of_half[half], high * of_half[half]};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      float* to = acc + 4 * j;
      const float* from = part + 4 * j;
      if constexpr (kColumns) {
        s = *reinterpret_cast<const float2*>(columns + 128 * half + 8 * j);
        to[0] += from[0] * (low * s.x), to[1] += from[1] * (low * s.y);
        to[2] += from[2] * (high * s.x), to[3] += from[3] * (high * s.y);
      } else {
        to[0] += from[0] * s.x, to[1] += from[1] * s.x;
        to[2] += from[2] * s.y, to[3] += from[3] * s.y;
      }
    }
  }
};

/// acc += the sum over the tile's contraction.
///
/// A last stage that is not full: columns past K arrive as zeros, but those past a group's end are
/// the next group's. Fast: only the steps with columns of the group are taken, one at a time (ptxas
/// serialises all products of a kernel in which some stand under a condition). Full: they are
/// zeroed.
template <Product P, Sum S, bool Wide>
OCTAVO_DEVICE void sum(Consumer& c, float* acc, int length, Scales<P, S, Wide> scales) {
  constexpr int kCount = Wide ? 128 : 64;
  constexpr bool kCut = P == Product::kContraction;
  const int blocks = kCut ? length / kDepth : tiles_along(length, kDepth);
  const int rest = length % kDepth;
  if constexpr (S == Sum::kFast) {
    int before = -1;
    hold<kCount>(acc);
    for (int i = 0; i < blocks; ++i) {
      c.wait();
      wgmma_fence();
      multiply_stage<Wide>(acc, c.a(), c.b(), true);
      wgmma_commit();
      wgmma_wait<1>();
      if (before >= 0) c.release(before);
      before = c.ring.stage;
      c.ring.advance();
    }
    wgmma_wait<0>();
    hold<kCount>(acc);
    if (before >= 0) c.release(before);
    if (kCut && rest > 0) {
      c.wait();
      if (rest % kStep != 0) c.zero_columns(rest, rest + 16, 2 * kCount);
#pragma unroll 1
      for (int i = 0; i < rest; i += kStep) {
        hold<kCount>(acc);
        wgmma_fence();
        multiply<Wide>(acc, c.a() + (i >> 4), c.b() + (i >> 4), true);
        wgmma_commit();
        wgmma_wait<0>();
        hold<kCount>(acc);
      }
      c.release(c.ring.stage);
      c.ring.advance();
    }
  } else {
    // One set of registers for all parts: where the compiler knows that the first product of a part
    // overwrites it, it keeps two, and they do not fit.
    float part[64];
    const bool accumulate = length < 0;  // never
    for (int left = length; left > 0; left -= kDepth) {
      scales.begin(c);
      c.wait();
      if (kCut && left < kDepth) c.zero_columns(left, kDepth, 2 * kCount);
#pragma unroll
      for (int h = 0; h < kCount / 64; ++h) {
        hold<64>(part);
        wgmma_fence();
        multiply_stage<false>(part, c.a(), c.b() + h * (kHalfB >> 4), accumulate);
        wgmma_commit();
        if (h == 0 && left > kDepth) scales.load_next();
        wgmma_wait<0>();
        hold<64>(part);
        if (64 * h + 64 == kCount) c.release(c.ring.stage);
        scales.add(acc + 64 * h, part, h);
      }
      c.ring.advance();
    }
  }
}

/// Takes part in the ring for a tile that this warpgroup has no rows or columns of.
OCTAVO_DEVICE void pass(Consumer& c, int length) {
  for (int k = 0; k < length; k += kDepth) {
    c.wait();
    c.release(c.ring.stage);
    c.ring.advance();
  }
}

/// Scales the accumulators, rounds them and writes the rows and columns that exist. Each warp turns
/// its 16 rows around in its own shared memory, 64 columns at a time, to write whole lines; the
/// next 64 are scaled while those are on their way.
template <bool Scaled, int Count>
OCTAVO_DEVICE void write(const float (&acc)[Count], float scale_low, float scale_high,
                         const float* column_scale, std::uint32_t staging, std::uint16_t* out,
                         std::int64_t row_stride, int rows, int columns, bool accumulate) {
  constexpr int kChunks = Count / 32, kRowBytes = 2 * kChunk;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  std::uint32_t packed[16];
  const auto pack = [&](int chunk) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float* d = &acc[32 * chunk + 4 * j];
      if constexpr (!Scaled) {
        packed[2 * j] = pack_bf16(d[0], d[1]);
        packed[2 * j + 1] = pack_bf16(d[2], d[3]);
        continue;
      }
      const float2 scale =
          *reinterpret_cast<const float2*>(column_scale + chunk * kChunk + 8 * j + 2 * (lane & 3));
      packed[2 * j] = pack_bf16(d[0] * scale.x * scale_low, d[1] * scale.y * scale_low);
      packed[2 * j + 1] = pack_bf16(d[2] * scale.x * scale_high, d[3] * scale.y * scale_high);
    }
  };
  // 16-byte pieces of a row are exchanged by its number, so that a store of matrices and a load of
  // lines each touch all banks. Stores: matrices 0 and 1 are the upper and lower eight rows, 2 and
  // 3 the next piece's. Loads: eight lanes a line.
  const int store_row = lane & 15, store_piece = lane / 16;
  const int load_row = lane / 8, load_piece = lane & 7;
  const std::uint32_t to = staging + store_row * kRowBytes;
  out += load_row * row_stride + 8 * load_piece;
  pack(0);
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    if (chunk * kChunk >= columns) break;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      store_matrices(to + (((2 * j + store_piece) ^ (store_row & 7)) << 4), packed[4 * j],
                     packed[4 * j + 1], packed[4 * j + 2], packed[4 * j + 3]);
    }
    __syncwarp();
    Words4 line[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 4 * i + load_row;
      line[i] = load16_shared(staging + row * kRowBytes + ((load_piece ^ (row & 7)) << 4));
    }
    if (chunk + 1 < kChunks) pack(chunk + 1);
    const bool inside = chunk * kChunk + 8 * load_piece < columns;
    const auto place = [&](int i) {
      return reinterpret_cast<Words4*>(out + 4 * i * row_stride + chunk * kChunk);
    };
    if (accumulate) {
      Words4 held[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (inside && 4 * i + load_row < rows) held[i] = *place(i);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) line[i] = add_bf16(line[i], held[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (inside && 4 * i + load_row < rows) *place(i) = line[i];
    }
    __syncwarp();
  }
}

/// A tile of which this warpgroup has rows and columns.
template <Product P, Sum S, bool Wide>
OCTAVO_DEVICE void compute_tile(const Params& p, Consumer& c, const Tile& tile,
                                float* column_scale) {
  const int thread = static_cast<int>(threadIdx.x) & 127, warp = thread / 32, lane = thread & 31;
  const int row_in_tile = 64 * c.warpgroup + 16 * warp;
  // The tile's rows of out among all groups' are also those of a_scale.
  const std::int64_t row = tile.row + row_in_tile +
                           (P == Product::kRows ? 0 : std::int64_t{tile.group} * p.extents.rows);
  const int rows = tile.rows - row_in_tile;  // this warp's, from row on
  const std::uint32_t staging = shared_address(c.shared.staging[4 * c.warpgroup + warp]);
  std::uint16_t* out = p.out + row * p.extents.columns + tile.column;
  const bool accumulate = P == Product::kContraction && p.accumulate;
  float acc[Wide ? 128 : 64] = {};
  const Scales<P, S, Wide> of_parts(p, tile, c.warpgroup);
  if constexpr (S == Sum::kBlocks) {
    sum<P, S, Wide>(c, acc, tile.length, of_parts);
    write<false>(acc, 0.0f, 0.0f, nullptr, staging, out, p.extents.columns, rows, tile.columns,
                 accumulate);
    return;
  }
  // 0 * Inf would not be zero: a group without columns takes no scales.
  const bool low = lane / 4 < rows && tile.length > 0,
             high = lane / 4 + 8 < rows && tile.length > 0;
  const float scale_low = low ? load_early(p.a_scale + row + lane / 4) : 0.0f;
  const float scale_high = high ? load_early(p.a_scale + row + lane / 4 + 8) : 0.0f;
  const float* b_scale =
      p.b_scale + std::int64_t{tile.group} * p.extents.columns + tile.column + thread;
  float scales[Wide ? 2 : 1];
#pragma unroll
  for (int i = 0; i < (Wide ? 2 : 1); ++i) {
    const bool inside = thread + 128 * i < tile.columns && tile.length > 0;
    scales[i] = inside ? load_early(b_scale + 128 * i) : 0.0f;
  }
  sum<P, S, Wide>(c, acc, tile.length, of_parts);
#pragma unroll
  for (int i = 0; i < (Wide ? 2 : 1); ++i) column_scale[thread + 128 * i] = scales[i];
  named_barrier(1 + c.warpgroup, 128);
  write<true>(acc, scale_low, scale_high, column_scale, staging, out, p.extents.columns, rows,
              tile.columns, accumulate);
}

template <Product P, Sum S>
OCTAVO_DEVICE void compute(const Params& p, Shared& shared) {
  Consumer c{shared, {}, uniform(static_cast<int>(threadIdx.x) / 128)};
  std::uint32_t parity = 0;
  for (int turn = 0;; ++turn) {
    Tile tile;
    if (!uniform(take_tile<true>(shared, parity, tile))) break;
    tile.length = uniform(tile.length), tile.rows = uniform(tile.rows);
    tile.columns = uniform(tile.columns);
    float* column_scale = shared.column_scale[c.warpgroup][turn & 1];
    if (tile.columns == 0 || tile.rows <= 64 * c.warpgroup) {
      pass(c, tile.length);
    } else if (tile.columns > 128) {
      compute_tile<P, S, true>(p, c, tile, column_scale);
    } else {
      compute_tile<P, S, false>(p, c, tile, column_scale);
    }
  }
}

/// What every thread of the kernel does.
template <Product P, Sum S>
OCTAVO_DEVICE void grouped_gemm(const Params& p) {
  extern __shared__ std::uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), 2 * kOutWarps);
    }
    barrier_init(shared_address(&shared.tile_full), 1);
    barrier_init(shared_address(&shared.tile_empty), 2 * (kOutWarps + 1));
    barrier_init_fence();
    prefetch_tensor_map(&p.a);
    prefetch_tensor_map(&p.b);
  }
  make_table<P>(p.offs, p.extents, shared.table, reinterpret_cast<Group*>(&shared.staging[0][0]));
  cluster_barrier();

  if (threadIdx.x < 128 * kConsumers) {
    take_registers<kConsumerRegisters>();
    compute<P, S>(p, shared);
  } else {
    give_registers<kProducerRegisters>();
    const int thread = static_cast<int>(threadIdx.x) - 128 * kConsumers;
    if (thread == 0) {
      load(p, shared, P == Product::kRows);
    } else if (thread == 32 && cluster_rank() == 0) {
      hand_out<P>(p, shared);
    } else if (P == Product::kRows && thread >= 64) {
      // Meanwhile the other warps zero the rows past the last group.
      const std::int64_t row_bytes = std::int64_t{2} * p.extents.columns;
      const std::int64_t end = p.extents.rows * row_bytes;
      for (std::int64_t at = shared.table[p.extents.groups].begin * row_bytes +
                             16 * (blockIdx.x * std::int64_t{64} + thread - 64);
           at < end; at += 16 * 64 * std::int64_t{gridDim.x}) {
        *reinterpret_cast<Words4*>(reinterpret_cast<char*>(p.out) + at) = {0, 0, 0, 0};
      }
    }
  }
  __syncwarp();
  cluster_barrier();  // a block that is still loading or releasing needs its partner's memory
}

#endif  // OCTAVO_HOPPER_CODE

}  // namespace octavo::gpu::grouped
