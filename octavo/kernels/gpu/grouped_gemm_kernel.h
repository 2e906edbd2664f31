#pragma once

#include "octavo/kernels/gpu/grouped_gemm_sum.h"

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

#ifdef OCTAVO_HOPPER_CODE

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
