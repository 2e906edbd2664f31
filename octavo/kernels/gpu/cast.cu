#include "octavo/kernels/gpu/cast.h"

#include "octavo/kernels/gpu/dispatch.h"
#include "octavo/kernels/gpu/tile.h"

namespace octavo::gpu {
namespace {

// What the rows of one layout are scaled by.
struct Scales {
  const float* amax;
  float* scale;
  int stride;  // 1: one for every row of the layout, 0: one for the tensor
};

struct Params {
  Source x;
  Sink rows, transposed;
  Scales row, column;
  Format format;
  ScaleRounding rounding;
};

// inv_scale of the layout's row `index`; whoever has `writes` also stores its scale.
OCTAVO_DEVICE float inv_scale_at(const Scales& f, std::int64_t index, std::int64_t extent,
                                 bool writes, Format format, ScaleRounding rounding) {
  if (!f.amax || index >= extent) return 0.0f;
  const std::int64_t at = index * f.stride;
  const float inv_scale = inv_scale_on_device(f.amax[at], format, rounding);
  if (writes && f.scale && (f.stride == 1 || index == 0)) f.scale[at] = scale_on_device(inv_scale);
  return inv_scale;
}

template <DType T, class Encoder, Access A>
__global__ void OCTAVO_LAUNCH_BOUNDS(kTileThreads, (blocks_per_multiprocessor<T, A>()))
    cast_kernel(const Params p) {
  __shared__ __align__(16) float row_inv_scales[kTile];
  __shared__ __align__(16) float column_inv_scales[kTile];
  const Encoder encoder(p.format);
  const TileThread at;
  const TileOrigin tile(p.x);
  const std::int64_t m = tile.m + at.row, k = tile.k + at.column;

  ThreadTile<T> v;
  load_tile<T, A>(v, p.x, m, k);
  row_inv_scales[threadIdx.x] = inv_scale_at(p.row, tile.m + threadIdx.x, p.x.rows, tile.k == 0,
                                             encoder.format(), p.rounding);
  column_inv_scales[threadIdx.x] = inv_scale_at(p.column, tile.k + threadIdx.x, p.x.columns,
                                                tile.m == 0, encoder.format(), p.rounding);
  __syncthreads();
  if (!is_present<A>(p.x, m, k)) return;
  convert_and_store<T, Encoder, A>(v, encoder, &row_inv_scales[at.row],
                                   &column_inv_scales[at.column], p.rows, p.transposed, p.x, m, k);
}

// With K or M zero there is no tile, but the layout's rows still have scales.
__global__ void scales_of_zero(Scales f, std::int64_t count, Format format,
                               ScaleRounding rounding) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) f.scale[i] = scale_on_device(inv_scale_on_device(0.0f, format, rounding));
}

struct Launch {
  const Params& p;
  unsigned tiles;
  NativeStream stream;

  template <DType T, class Encoder, Access A>
  void run() const {
    cast_kernel<T, Encoder, A><<<tiles, kTileThreads, 0, stream>>>(p);
  }
};

}  // namespace

void cast(const CastArgs& args, Stream stream) {
  const auto native = static_cast<NativeStream>(stream);
  const Matrix& x = args.x;
  Params p{source_of(x),
           {args.rows.data, x.columns},
           {args.transposed.data, x.rows},
           {args.rows.amax, args.rows.scale, args.rows.per_row},
           {args.transposed.amax, args.transposed.scale, args.transposed.per_row},
           args.format,
           args.rounding};
  if (x.rows == 0 || x.columns == 0) {
    const auto fill = [&](const Scales& f, std::int64_t extent) {
      const std::int64_t count = f.stride == 1 ? extent : 1;
      if (!f.scale || count == 0) return;
      scales_of_zero<<<static_cast<unsigned>(ceil_div(count, 256)), 256, 0, native>>>(
          f, count, args.format, args.rounding);
    };
    fill(p.row, x.rows);
    fill(p.column, x.columns);
    return;
  }
  dispatch(x, args.format, takes_vectors(x, args.rows.data, args.transposed.data),
           Launch{p, tile_count(x), native});
}

}  // namespace octavo::gpu
