#include "octavo/kernels/gpu/quantize_resident.h"

#include "octavo/kernels/gpu/dispatch.h"
#include "octavo/kernels/gpu/tile_amax.h"

namespace octavo::gpu {
namespace {

// One layout's scales, and the amaxes of the tiles' pieces of its lines: [tiles along the
// line][lines].
struct Scales {
  float* data;
  bool per_row;
  float* partial;
};

struct Params {
  Source x;
  Sink rows, transposed;
  Scales row, column;
  float* tile_partial;  // [tiles]
  Format format;
  ScaleRounding rounding;
};

// Magnitudes as integers: NaN is above Inf.
OCTAVO_DEVICE std::uint32_t larger(std::uint32_t a, float b) {
  return max_u32(a, internal::bits_of(b));
}

// One layout's lines as the tile meets them: rows of x for the rows layout, columns otherwise.
template <Line L>
struct Lines {
  const Scales& scales;
  bool by_line;
  std::int64_t own, count;  // this thread's line, and how many there are
  unsigned tile, tiles;     // the tile's place along the line, and how many there are

  OCTAVO_DEVICE Lines(const Params& p, const TilePlace& at)
      : scales(L == Line::kRow ? p.row : p.column) {
    constexpr bool kRow = L == Line::kRow;
    by_line = (kRow ? p.rows : p.transposed).data && scales.per_row;
    own = (kRow ? at.m : at.k) + threadIdx.x;
    count = kRow ? p.x.rows : p.x.columns;
    tile = static_cast<unsigned>((kRow ? at.k : at.m) / kTile);
    tiles = kRow ? p.x.tiles_across : p.x.tiles_of_group;
  }

  OCTAVO_DEVICE bool has_line() const { return by_line && own < count; }

  OCTAVO_DEVICE void publish(const LinePartials& amax) const {
    if (has_line()) scales.partial[tile * count + own] = line_amax(amax, threadIdx.x);
  }

  // After the barrier: the line's inv_scale, or the tensor's.
  OCTAVO_DEVICE float collect(float whole_inv_scale, Format format, ScaleRounding rounding) const {
    if (!has_line()) return whole_inv_scale;
    std::uint32_t all = 0;
    for (unsigned i = 0; i < tiles; ++i) all = larger(all, scales.partial[i * count + own]);
    const float inv_scale = inv_scale_on_device(internal::float_of(all), format, rounding);
    if (tile == 0) scales.data[own] = scale_on_device(inv_scale);
    return inv_scale;
  }
};

template <DType T, class Encoder, Access A>
__global__ void OCTAVO_LAUNCH_BOUNDS(kTileThreads, (blocks_per_multiprocessor<T, A>()))
    quantize_resident_kernel(const Params p) {
  if constexpr (!Encoder::exists()) return;
  __shared__ LinePartials row_amax, column_amax;
  __shared__ std::uint32_t of_warp[kTileThreads / 32];
  __shared__ __align__(16) float row_inv_scale[kTile];
  __shared__ __align__(16) float column_inv_scale[kTile];
  const Encoder encoder(p.format);
  const TileThread at;
  const TilePlace tile(p.x);
  const int t = threadIdx.x;
  const Lines<Line::kRow> rows(p, tile);
  const Lines<Line::kColumn> columns(p, tile);
  const bool whole = (p.rows.data && !p.row.per_row) || (p.transposed.data && !p.column.per_row);

  ThreadTile<T> v;
  load_tile<T, A>(v, p.x, tile, at);
  if (rows.by_line) reduce_lines<Line::kRow>(v, at, row_amax);
  if (columns.by_line) reduce_lines<Line::kColumn>(v, at, column_amax);
  if (whole) {
    const std::uint32_t mine = reduce_warp(v, at);
    if (at.lane == 0) of_warp[t / 32] = mine;
  }
  __syncthreads();
  rows.publish(row_amax);
  columns.publish(column_amax);
  if (whole && t == 0) p.tile_partial[blockIdx.x] = warps_amax<T>(of_warp);

  grid_barrier();

  float whole_inv_scale = 0.0f;
  if (whole) {
    std::uint32_t all[1] = {0};
    for (unsigned i = t; i < gridDim.x; i += kTileThreads)
      all[0] = larger(all[0], p.tile_partial[i]);
    // fp32 bits, whatever T is.
    spread_merge<DType::kFP32, 1, 0, 5>(all, at.lane);
    if (at.lane == 0) of_warp[t / 32] = all[0];
    __syncthreads();
    const float amax = warps_amax<DType::kFP32>(of_warp);
    whole_inv_scale = inv_scale_on_device(amax, encoder.format(), p.rounding);
    if (blockIdx.x == 0 && t == 0) {
      if (p.rows.data && !p.row.per_row) p.row.data[0] = scale_on_device(whole_inv_scale);
      if (p.transposed.data && !p.column.per_row) {
        p.column.data[0] = scale_on_device(whole_inv_scale);
      }
    }
  }
  row_inv_scale[t] = rows.collect(whole_inv_scale, encoder.format(), p.rounding);
  column_inv_scale[t] = columns.collect(whole_inv_scale, encoder.format(), p.rounding);
  __syncthreads();
  convert_and_store<A>(v, encoder, &row_inv_scale[at.row], &column_inv_scale[at.column], p.rows,
                       p.transposed, p.x, tile, at);
}

std::int64_t row_partials(const Matrix& x) { return ceil_div(x.columns, kTile) * x.rows; }
std::int64_t column_partials(const Matrix& x) { return ceil_div(x.rows, kTile) * x.columns; }

}  // namespace

bool fits_resident(const QuantizeResidentArgs& args) {
  const Matrix& x = args.x;
  if (x.rows == 0 || x.columns == 0 || !has_cast_instruction(args.format) ||
      access_of(x, args.rows.data, args.transposed.data) != Access::kVector) {
    return false;
  }
  const int blocks = x.dtype == DType::kFP32
                         ? blocks_per_multiprocessor<DType::kFP32, Access::kVector>()
                         : blocks_per_multiprocessor<DType::kBF16, Access::kVector>();
  return ceil_div(x.rows, kTile) * ceil_div(x.columns, kTile) <=
         std::int64_t{blocks} * multiprocessors();
}

std::int64_t resident_partials(const Matrix& x) {
  return row_partials(x) + column_partials(x) + tile_count(x);
}

void quantize_resident(const QuantizeResidentArgs& args, Stream stream) {
  const Matrix& x = args.x;
  float* const column_partial = args.partial + row_partials(x);
  Params p{source_of(x),
           rows_sink(args.rows.data, x),
           transposed_sink(args.transposed.data, x),
           {args.rows.scale, args.rows.per_row, args.partial},
           {args.transposed.scale, args.transposed.per_row, column_partial},
           column_partial + column_partials(x),
           args.format,
           args.rounding};
  dispatch(x, args.format, Access::kVector, [&]<DType T, class Encoder, Access A>() {
    if constexpr (A == Access::kVector) {
      launch_cooperative(quantize_resident_kernel<T, Encoder, A>, tile_count(x), kTileThreads,
                         static_cast<NativeStream>(stream), p);
    }
  });
}

}  // namespace octavo::gpu
