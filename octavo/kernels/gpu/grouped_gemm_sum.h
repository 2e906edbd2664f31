#pragma once

#include "octavo/kernels/gpu/grouped_gemm_stages.h"

/// How a warpgroup of grouped_gemm_kernel.h sums a tile from the ring of stages.
namespace octavo::gpu::grouped {

#ifdef OCTAVO_HOPPER_CODE

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

#endif  // OCTAVO_HOPPER_CODE

}  // namespace octavo::gpu::grouped
