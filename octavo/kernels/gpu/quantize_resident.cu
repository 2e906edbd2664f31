#include "octavo/kernels/gpu/quantize_resident.h"

#include "octavo/kernels/gpu/dispatch.h"
#include "octavo/kernels/gpu/tile.h"

namespace octavo::gpu {
namespace {

// One layout's scales: where they go, and the tiles' amaxes they come from.
struct Scales {
  float* data;
  bool per_row;
};

struct Params {
  Source x;
  Sink rows, transposed;
  Scales row, column;
  // [tiles along K][M], [tiles along M][K], [tiles]
  float *row_partial, *column_partial, *tile_partial;
  Format format;
  ScaleRounding rounding;
};

// Magnitudes as integers: NaN is above Inf.
OCTAVO_DEVICE std::uint32_t larger(std::uint32_t a, float b) {
  return max_u32(a, internal::bits_of(b));
}

// The maximum of `count` values that lie `stride` apart.
OCTAVO_DEVICE std::uint32_t max_of(const float* values, std::int64_t stride, unsigned count) {
  std::uint32_t all = 0;
  for (unsigned i = 0; i < count; ++i) all = larger(all, values[i * stride]);
  return all;
}

template <DType T, class Encoder, Access A>
__global__ void OCTAVO_LAUNCH_BOUNDS(kTileThreads, (blocks_per_multiprocessor<T, A>()))
    quantize_resident_kernel(const Params p) {
  __shared__ std::uint32_t row_amax[2][kTile], column_amax[2][kTile];
  __shared__ std::uint32_t of_warp[kTileThreads / 32];
  __shared__ __align__(16) float row_inv_scale[kTile];
  __shared__ __align__(16) float column_inv_scale[kTile];
  const Encoder encoder(p.format);
  const TileThread at;
  const TileOrigin tile(p.x);
  const std::int64_t m = tile.m + at.row, k = tile.k + at.column;
  const int t = threadIdx.x;
  const bool by_row = p.rows.data && p.row.per_row;
  const bool by_column = p.transposed.data && p.column.per_row;
  const bool whole = (p.rows.data && !p.row.per_row) || (p.transposed.data && !p.column.per_row);

  ThreadTile<T> v;
  load_tile<T, A>(v, p.x, m, k);
  if (by_row) reduce_rows(v, at, row_amax);
  if (by_column) reduce_columns(v, at, column_amax);
  if (whole) {
    ColumnAmax<T> amax(v);
    std::uint32_t all[1] = {0};
#pragma unroll
    for (int w = 0; w < Packed<T>::kWords; ++w) all[0] = Packed<T>::merge(all[0], amax.word[w]);
    spread_merge<T, 1, 0, 5>(all, at.lane);
    if (at.lane == 0) of_warp[t / 32] = all[0];
  }
  __syncthreads();
  if (by_row && tile.m + t < p.x.rows) {
    p.row_partial[tile.k / kTile * p.x.rows + tile.m + t] =
        internal::float_of(max_u32(row_amax[0][t], row_amax[1][t]));
  }
  if (by_column && tile.k + t < p.x.columns) {
    p.column_partial[tile.m / kTile * p.x.columns + tile.k + t] =
        internal::float_of(max_u32(column_amax[0][t], column_amax[1][t]));
  }
  if (whole && t == 0) {
    std::uint32_t all = of_warp[0];
#pragma unroll
    for (int i = 1; i < kTileThreads / 32; ++i) all = Packed<T>::merge(all, of_warp[i]);
    p.tile_partial[blockIdx.x] = internal::float_of(Packed<T>::amax_bits(all));
  }

  grid_barrier();

  const unsigned tiles_m = static_cast<unsigned>((p.x.rows + kTile - 1) / kTile);
  const unsigned tiles_k = static_cast<unsigned>((p.x.columns + kTile - 1) / kTile);
  float whole_inv_scale = 0.0f;
  if (whole) {
    std::uint32_t all[1] = {0};
    for (unsigned i = t; i < gridDim.x; i += kTileThreads)
      all[0] = larger(all[0], p.tile_partial[i]);
    // fp32 bits, whatever T is.
    spread_merge<DType::kFP32, 1, 0, 5>(all, at.lane);
    if (at.lane == 0) of_warp[t / 32] = all[0];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTileThreads / 32; ++i) all[0] = max_u32(all[0], of_warp[i]);
    whole_inv_scale = inv_scale_on_device(internal::float_of(all[0]), encoder.format(), p.rounding);
    if (blockIdx.x == 0 && t == 0) {
      if (p.rows.data && !p.row.per_row) p.row.data[0] = scale_on_device(whole_inv_scale);
      if (p.transposed.data && !p.column.per_row) {
        p.column.data[0] = scale_on_device(whole_inv_scale);
      }
    }
  }
  if (p.rows.data) {
    float inv_scale = whole_inv_scale;
    if (by_row && tile.m + t < p.x.rows) {
      inv_scale = inv_scale_on_device(
          internal::float_of(max_of(p.row_partial + tile.m + t, p.x.rows, tiles_k)),
          encoder.format(), p.rounding);
      if (tile.k == 0) p.row.data[tile.m + t] = scale_on_device(inv_scale);
    }
    row_inv_scale[t] = inv_scale;
  }
  if (p.transposed.data) {
    float inv_scale = whole_inv_scale;
    if (by_column && tile.k + t < p.x.columns) {
      inv_scale = inv_scale_on_device(
          internal::float_of(max_of(p.column_partial + tile.k + t, p.x.columns, tiles_m)),
          encoder.format(), p.rounding);
      if (tile.m == 0) p.column.data[tile.k + t] = scale_on_device(inv_scale);
    }
    column_inv_scale[t] = inv_scale;
  }
  __syncthreads();
  if (!is_present<A>(p.x, m, k)) return;
  convert_and_store<T, Encoder, A>(v, encoder, &row_inv_scale[at.row], &column_inv_scale[at.column],
                                   p.rows, p.transposed, p.x, m, k);
}

struct Launch {
  Params& p;
  unsigned tiles;
  NativeStream stream;

  template <DType T, class Encoder, Access A>
  void run() const {
    if constexpr (A == Access::kVector) {
      launch_cooperative(quantize_resident_kernel<T, Encoder, A>, tiles, kTileThreads, stream, p);
    }
  }
};

std::int64_t row_partials(const Matrix& x) { return ceil_div(x.columns, kTile) * x.rows; }
std::int64_t column_partials(const Matrix& x) { return ceil_div(x.rows, kTile) * x.columns; }

bool has_vector_path(Format format) {
#if OCTAVO_GPU_HIP
  return true;
#else
  return flavour_of(format) == Flavour::kOCP;
#endif
}

}  // namespace

bool fits_resident(const QuantizeResidentArgs& args) {
  const Matrix& x = args.x;
  if (x.rows == 0 || x.columns == 0 || !has_vector_path(args.format) ||
      !takes_vectors(x, args.rows.data, args.transposed.data)) {
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
           {args.rows.data, x.columns},
           {args.transposed.data, x.rows},
           {args.rows.scale, args.rows.per_row},
           {args.transposed.scale, args.transposed.per_row},
           args.partial,
           column_partial,
           column_partial + column_partials(x),
           args.format,
           args.rounding};
  dispatch(x, args.format, /*vectors=*/true,
           Launch{p, tile_count(x), static_cast<NativeStream>(stream)});
}

}  // namespace octavo::gpu
