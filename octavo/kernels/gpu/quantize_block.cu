#include "octavo/kernels/gpu/quantize_block.h"

#include "octavo/kernels/gpu/dispatch.h"
#include "octavo/kernels/gpu/tile.h"

namespace octavo::gpu {
namespace {

struct Scales {
  float* data;
  std::int64_t row_stride, column_stride;

  OCTAVO_DEVICE void store(std::int64_t row, std::int64_t column, float inv_scale) const {
    if (data) data[row * row_stride + column * column_stride] = scale_on_device(inv_scale);
  }
};

struct Params {
  Source x;
  Sink rows, transposed;
  Scales row, column;
  Format format;
  ScaleRounding rounding;
};

// 1x128 and 128x1. One thread owns one row's scale and one column's.
template <DType T, class Encoder, Access A>
__global__ void OCTAVO_LAUNCH_BOUNDS(kTileThreads, (blocks_per_multiprocessor<T, A>()))
    quantize_1x128_kernel(const Params p) {
  __shared__ std::uint32_t row_amax[2][kTile], column_amax[2][kTile];
  __shared__ __align__(16) float row_inv_scales[kTile];
  __shared__ __align__(16) float column_inv_scales[kTile];
  const Encoder encoder(p.format);
  const TileThread at;
  const TileOrigin tile(p.x);
  const std::int64_t m = tile.m + at.row, k = tile.k + at.column;
  const int t = threadIdx.x;

  ThreadTile<T> v;
  load_tile<T, A>(v, p.x, m, k);
  if (p.rows.data) reduce_rows(v, at, row_amax);
  if (p.transposed.data) reduce_columns(v, at, column_amax);
  __syncthreads();
  if (p.rows.data) {
    const std::uint32_t amax = max_u32(row_amax[0][t], row_amax[1][t]);
    const float inv = inv_scale_on_device(internal::float_of(amax), encoder.format(), p.rounding);
    row_inv_scales[t] = inv;
    if (tile.m + t < p.x.rows) p.row.store(tile.m + t, tile.k / kTile, inv);
  }
  if (p.transposed.data) {
    const std::uint32_t amax = max_u32(column_amax[0][t], column_amax[1][t]);
    const float inv = inv_scale_on_device(internal::float_of(amax), encoder.format(), p.rounding);
    column_inv_scales[t] = inv;
    if (tile.k + t < p.x.columns) p.column.store(tile.k + t, tile.m / kTile, inv);
  }
  __syncthreads();
  if (!is_present<A>(p.x, m, k)) return;
  convert_and_store<T, Encoder, A>(v, encoder, &row_inv_scales[at.row],
                                   &column_inv_scales[at.column], p.rows, p.transposed, p.x, m, k);
}

template <DType T, class Encoder, Access A>
__global__ void OCTAVO_LAUNCH_BOUNDS(kTileThreads, (blocks_per_multiprocessor<T, A>()))
    quantize_128x128_kernel(const Params p) {
  __shared__ std::uint32_t partial[kTileThreads / 32];
  const Encoder encoder(p.format);
  const TileThread at;
  const TileOrigin tile(p.x);
  const std::int64_t m = tile.m + at.row, k = tile.k + at.column;

  ThreadTile<T> v;
  load_tile<T, A>(v, p.x, m, k);
  ColumnAmax<T> column(v);
  std::uint32_t all[1] = {0};
#pragma unroll
  for (int w = 0; w < Packed<T>::kWords; ++w) all[0] = Packed<T>::merge(all[0], column.word[w]);
  spread_merge<T, 1, 0, 5>(all, at.lane);
  if (at.lane == 0) partial[threadIdx.x / 32] = all[0];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTileThreads / 32; ++i) all[0] = Packed<T>::merge(all[0], partial[i]);
  const float amax = internal::float_of(Packed<T>::amax_bits(all[0]));
  const float inv = inv_scale_on_device(amax, encoder.format(), p.rounding);
  if (threadIdx.x == 0) {
    if (p.rows.data) p.row.store(tile.m / kTile, tile.k / kTile, inv);
    if (p.transposed.data) p.column.store(tile.k / kTile, tile.m / kTile, inv);
  }
  if (!is_present<A>(p.x, m, k)) return;
  // Both layouts hold the same bytes, so each element is converted once.
  std::uint32_t words[2][kThreadRows];
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    const Vec8<T>& x = v.row[r];
    words[0][r] = encoder(x[0] * inv, x[1] * inv, x[2] * inv, x[3] * inv);
    words[1][r] = encoder(x[4] * inv, x[5] * inv, x[6] * inv, x[7] * inv);
    if (p.rows.data) {
      store_row<A>(p.rows, p.x.rows, p.x.columns, m + r, k, {words[0][r], words[1][r]});
    }
  }
  if (p.transposed.data) store_transposed<A>(p.transposed, p.x.rows, p.x.columns, m, k, words);
}

struct Launch {
  const Params& p;
  BlockShape shape;
  unsigned tiles;
  NativeStream stream;

  template <DType T, class Encoder, Access A>
  void run() const {
    if (shape == BlockShape::k1x128) {
      quantize_1x128_kernel<T, Encoder, A><<<tiles, kTileThreads, 0, stream>>>(p);
    } else {
      quantize_128x128_kernel<T, Encoder, A><<<tiles, kTileThreads, 0, stream>>>(p);
    }
  }
};

}  // namespace

void quantize_block(const QuantizeBlockArgs& args, Stream stream) {
  const Matrix& x = args.x;
  if (x.rows == 0 || x.columns == 0) return;
  const auto scales = [](const BlockLayout& l) {
    return Scales{l.scale, l.scale_row_stride, l.scale_column_stride};
  };
  const Params p{source_of(x),      {args.rows.data, x.columns}, {args.transposed.data, x.rows},
                 scales(args.rows), scales(args.transposed),     args.format,
                 args.rounding};
  dispatch(x, args.format, takes_vectors(x, args.rows.data, args.transposed.data),
           Launch{p, args.shape, tile_count(x), static_cast<NativeStream>(stream)});
}

}  // namespace octavo::gpu
