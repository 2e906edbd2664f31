#include "octavo/kernels/gpu/quantize_block.h"

#include "octavo/kernels/gpu/dispatch.h"
#include "octavo/kernels/gpu/tile_amax.h"

namespace octavo::gpu {
namespace {

// Scales of x's rows or columns: line and the block along it.
struct Scales {
  float* data;
  std::int64_t line_stride, block_stride, group_stride;

  OCTAVO_DEVICE void store(std::int64_t group, std::int64_t line, std::int64_t block,
                           float inv_scale) const {
    if (!data) return;
    data[group * group_stride + line * line_stride + block * block_stride] =
        scale_on_device(inv_scale);
  }

  // What follows a line's last block up to a multiple of 4, where the stride leaves room: products
  // skip it, but scales are copied and compared whole.
  OCTAVO_DEVICE void clear_padding(std::int64_t group, std::int64_t line,
                                   std::int64_t blocks) const {
    if (!data) return;
    const std::int64_t padded = (blocks + 3) / 4 * 4;
    const std::int64_t end = padded < line_stride ? padded : line_stride;
    for (std::int64_t b = blocks; b < end; ++b) {
      data[group * group_stride + line * line_stride + b * block_stride] = 0.0f;
    }
  }
};

struct Params {
  Source x;
  Sink rows, transposed;
  // Of the two layouts: where it is scaled, and by which lines of x its sink says.
  Scales rows_scales, transposed_scales;
  Format format;
  ScaleRounding rounding;
  Producer from;

  OCTAVO_DEVICE bool uses(Line line) const {
    return (rows.data && rows.crossed == (line == Line::kColumn)) ||
           (transposed.data && transposed.crossed == (line == Line::kRow));
  }
};

// 1x128 and 128x1. One thread owns one row's scale and one column's.
template <DType T, class Encoder, Access A, class P, int N>
__global__ void OCTAVO_LAUNCH_BOUNDS(kTileThreads, (blocks_per_multiprocessor<T, A>()))
    quantize_1x128_kernel(const Together<Params, N> all) {
  if constexpr (!Encoder::exists()) return;
  __shared__ LinePartials row_amax, column_amax;
  __shared__ __align__(16) float row_inv_scales[kTile];
  __shared__ __align__(16) float column_inv_scales[kTile];
  const Params& p = all.mine();
  const Encoder encoder(p.format);
  const TileThread at;
  const TilePlace tile(p.x, all.block());
  const int t = threadIdx.x;

  ThreadTile<T> v;
  fill_tile<T, A, P>(v, p.from, p.x, tile, at);
  const bool by_rows = p.uses(Line::kRow), by_columns = p.uses(Line::kColumn);
  if (by_rows) reduce_lines<Line::kRow>(v, at, row_amax);
  if (by_columns) reduce_lines<Line::kColumn>(v, at, column_amax);
  __syncthreads();
  const auto scale_line = [&](const LinePartials& amax, float* inv_scales, Line line) {
    const float inv = inv_scale_on_device(line_amax(amax, t), encoder.format(), p.rounding);
    inv_scales[t] = inv;
    const bool row = line == Line::kRow;
    const bool present = row ? t < tile.rows : t < p.x.columns - tile.k && tile.columns > 0;
    if (!present) return;
    const std::int64_t index = row ? tile.m + t : tile.k + t;
    const std::int64_t block = (row ? tile.k : tile.column) / kTile;
    if (p.rows.crossed != row) p.rows_scales.store(tile.group, index, block, inv);
    if (p.transposed.crossed == row) p.transposed_scales.store(tile.group, index, block, inv);
  };
  if (by_rows) scale_line(row_amax, row_inv_scales, Line::kRow);
  if (by_columns) scale_line(column_amax, column_inv_scales, Line::kColumn);
  __syncthreads();
  convert_and_store<A>(v, encoder, &row_inv_scales[at.row], &column_inv_scales[at.column], p.rows,
                       p.transposed, p.x, tile, at);
}

template <DType T, class Encoder, Access A>
__global__ void OCTAVO_LAUNCH_BOUNDS(kTileThreads, (blocks_per_multiprocessor<T, A>()))
    quantize_128x128_kernel(const Params p) {
  if constexpr (!Encoder::exists()) return;
  __shared__ std::uint32_t of_warp[kTileThreads / 32];
  const Encoder encoder(p.format);
  const TileThread at;
  const TilePlace tile(p.x);

  ThreadTile<T> v;
  load_tile<T, A>(v, p.x, tile, at);
  const std::uint32_t mine = reduce_warp(v, at);
  if (at.lane == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  const float inv = inv_scale_on_device(warps_amax<T>(of_warp), encoder.format(), p.rounding);
  if (threadIdx.x == 0) {
    const std::int64_t m = tile.m / kTile, k = tile.k / kTile;
    if (p.rows.data) p.rows_scales.store(tile.group, m, k, inv);
    if (p.transposed.data) p.transposed_scales.store(tile.group, k, m, inv);
    if (tile.k + kTile >= p.x.columns) p.rows_scales.clear_padding(tile.group, m, k + 1);
    if (tile.m + kTile >= p.x.rows) p.transposed_scales.clear_padding(tile.group, k, m + 1);
  }
  if (!is_present<A>(p.x, tile, at)) return;
  // Both layouts hold the same bytes, so each element is converted once.
  const RowWriter<A> row_writer(p.rows, p.x, tile, at);
  std::uint32_t words[2][kThreadRows];
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    const Vec8<T>& x = v.row[r];
    words[0][r] = encoder(x[0] * inv, x[1] * inv, x[2] * inv, x[3] * inv);
    words[1][r] = encoder(x[4] * inv, x[5] * inv, x[6] * inv, x[7] * inv);
  }
  if (p.rows.data) {
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) row_writer.store(r, {words[0][r], words[1][r]});
  }
  if (p.transposed.data) store_transposed<A>(p.transposed, p.x, tile, at, words);
}

Params params_of(const QuantizeBlockArgs& args) {
  const Matrix& x = args.x;
  const Groups& groups = args.groups;
  // Blocks across a layout lie along the other axis of x: lines and blocks of its scales too.
  const auto scales = [](const BlockLayout& l) {
    return l.across
               ? Scales{l.scale, l.scale_column_stride, l.scale_row_stride, l.scale_group_stride}
               : Scales{l.scale, l.scale_row_stride, l.scale_column_stride, l.scale_group_stride};
  };
  return {source_of(x, groups),
          rows_sink(args.rows.data, x, groups, args.rows.across),
          transposed_sink(args.transposed.data, x, groups, args.transposed.across),
          scales(args.rows),
          scales(args.transposed),
          args.format,
          args.rounding,
          args.from};
}

}  // namespace

void quantize_block(const QuantizeBlockArgs& args, Stream stream) {
  const Matrix& x = args.x;
  const Groups& groups = args.groups;
  const unsigned tiles = tile_count(x, groups);
  if (tiles == 0) return;
  const Params p = params_of(args);
  const auto native = static_cast<NativeStream>(stream);
  if (args.from) {
    return dispatch_produced(args.from, args.format, groups.tiles,
                             [&]<DType T, class Encoder, Access A, class P>() {
                               quantize_1x128_kernel<T, Encoder, A, P, 1>
                                   <<<tiles, kTileThreads, 0, native>>>(Together<Params, 1>{{p}});
                             });
  }
  const Access access = args.rows.across || args.transposed.across
                            ? Access::kElement
                            : access_of(x, args.rows.data, args.transposed.data, groups);
  dispatch(x, args.format, access, [&]<DType T, class Encoder, Access A>() {
    if (args.shape == BlockShape::k1x128) {
      quantize_1x128_kernel<T, Encoder, A, FromMemory, 1>
          <<<tiles, kTileThreads, 0, native>>>(Together<Params, 1>{{p}});
    } else if constexpr (A != Access::kRagged) {
      quantize_128x128_kernel<T, Encoder, A><<<tiles, kTileThreads, 0, native>>>(p);
    }
  });
}

void quantize_block_pair(const QuantizeBlockArgs& first, const QuantizeBlockArgs& second,
                         Stream stream) {
  const unsigned tiles = tile_count(first.x);
  if (tiles == 0) return;
  const Params p[2] = {params_of(first), params_of(second)};
  dispatch_pair(first.format, [&]<DType T, class Encoder, Access A, class P>() {
    quantize_1x128_kernel<T, Encoder, A, P, 2>
        <<<2 * tiles, kTileThreads, 0, static_cast<NativeStream>(stream)>>>(
            Together<Params, 2>{{p[0], p[1]}});
  });
}

}  // namespace octavo::gpu
