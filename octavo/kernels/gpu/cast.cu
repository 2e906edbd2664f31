#include "octavo/kernels/gpu/cast.h"

#include "octavo/kernels/gpu/dispatch.h"
#include "octavo/kernels/gpu/tile.h"

namespace octavo::gpu {
namespace {

// What one layout is scaled by.
struct Scales {
  const float* amax;
  float* scale;
  std::int64_t stride;  // 1: one for every line, 0: one for the tensor
  std::int64_t group_stride;
};

struct Params {
  Source x;
  Sink rows, transposed;
  Scales row, column;  // of the layouts
  Format format;
  ScaleRounding rounding;
  Producer from;
};

// inv_scale of the group's line `index`; whoever has `writes` also stores its scale.
OCTAVO_DEVICE float inv_scale_at(const Scales& f, std::int64_t group, std::int64_t index,
                                 bool writes, Format format, ScaleRounding rounding) {
  const std::int64_t at = group * f.group_stride + index * f.stride;
  const float inv_scale = inv_scale_on_device(f.amax[at], format, rounding);
  if (writes && f.scale && (f.stride == 1 || index == 0)) f.scale[at] = scale_on_device(inv_scale);
  return inv_scale;
}

template <DType T, class Encoder, Access A, class P, Layouts L = Layouts::kAny>
__global__ void OCTAVO_LAUNCH_BOUNDS(kTileThreads, (blocks_per_multiprocessor<T, A>()))
    cast_kernel(const Params p) {
  if constexpr (!Encoder::exists()) return;
  // inv_scale of the tile's rows and columns, whichever layout asks for them.
  __shared__ __align__(16) float row_inv_scales[kTile];
  __shared__ __align__(16) float column_inv_scales[kTile];
  const Encoder encoder(p.format);
  const TileThread at;
  const TilePlace tile(p.x);
  const int t = threadIdx.x;

  ThreadTile<T> v;
  fill_tile<T, A, P>(v, p.from, p.x, tile, at);
  const auto scale_lines = [&](const Sink& out, const Scales& f, bool by_rows) {
    if (!out.data) return;
    float inv_scale = 0.0f;
    if (by_rows) {
      if (t < tile.rows) {
        inv_scale =
            inv_scale_at(f, tile.group, tile.m + t, tile.k == 0, encoder.format(), p.rounding);
      }
      row_inv_scales[t] = inv_scale;
    } else {
      if (tile.k + t < p.x.columns && tile.group < p.x.groups) {
        inv_scale =
            inv_scale_at(f, tile.group, tile.k + t, tile.first, encoder.format(), p.rounding);
      }
      column_inv_scales[t] = inv_scale;
    }
  };
  scale_lines(p.rows, p.row, !p.rows.crossed);
  scale_lines(p.transposed, p.column, p.transposed.crossed);
  __syncthreads();
  if constexpr (L == Layouts::kRowsAcross) {
    if (!is_present<A>(p.x, tile, at)) return;
    convert_and_store_layouts<L, A>(v, encoder, &row_inv_scales[at.row],
                                    &column_inv_scales[at.column], p.rows, p.transposed, p.x, tile,
                                    at);
  } else {
    convert_and_store<A>(v, encoder, &row_inv_scales[at.row], &column_inv_scales[at.column], p.rows,
                         p.transposed, p.x, tile, at);
  }
}

// With K or M zero there is no tile, but the layout's lines still have scales.
__global__ void scales_alone(const float* amax, float* scale, std::int64_t count, Format format,
                             ScaleRounding rounding) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) scale[i] = scale_on_device(inv_scale_on_device(amax[i], format, rounding));
}

// `own` and `across`: how many lines and columns of the layout a group has.
Scales scales_of(const CastLayout& layout, std::int64_t own, std::int64_t across) {
  const std::int64_t lines = layout.scales == CastScales::kLines    ? own
                             : layout.scales == CastScales::kAcross ? across
                                                                    : 1;
  return {layout.amax, layout.scale, layout.scales == CastScales::kTensor ? 0 : 1, lines};
}

}  // namespace

void cast(const CastArgs& args, Stream stream) {
  const auto native = static_cast<NativeStream>(stream);
  const Matrix& x = args.x;
  const Groups& groups = args.groups;
  // A layout that is scaled across takes the other's axis; a tensor's scale makes room for it.
  const auto crosses = [](const CastLayout& layout, const CastLayout& other) {
    return layout.scales == CastScales::kAcross ||
           (layout.scales == CastScales::kTensor && other.data &&
            other.scales == CastScales::kAcross);
  };
  const bool rows_cross = args.rows.data && crosses(args.rows, args.transposed);
  const bool transposed_cross = args.transposed.data && crosses(args.transposed, args.rows);
  Params p{source_of(x, groups),
           rows_sink(args.rows.data, x, groups, rows_cross),
           transposed_sink(args.transposed.data, x, groups, transposed_cross),
           scales_of(args.rows, x.rows, x.columns),
           scales_of(args.transposed, x.columns, x.rows),
           args.format,
           args.rounding,
           args.from};
  if (groups.tiles) p.row.group_stride = 0;  // rows count over all groups
  if (groups.count == 0) return;
  const unsigned tiles = tile_count(x, groups);
  if (tiles == 0) {
    const auto fill = [&](const CastLayout& layout, std::int64_t count) {
      if (!layout.scale || count == 0) return;
      scales_alone<<<static_cast<unsigned>(ceil_div(count, 256)), 256, 0, native>>>(
          layout.amax, layout.scale, count, args.format, args.rounding);
    };
    fill(args.rows, groups.tiles ? x.rows : groups.count * p.row.group_stride);
    fill(args.transposed, groups.count * p.column.group_stride);
    return;
  }
  if (args.from) {
    dispatch_hardware_format<false>(args.format, [&]<Format F>() {
      cast_kernel<DType::kBF16, StaticEncoder<F>, Access::kVector, FromRmsNorm>
          <<<tiles, kTileThreads, 0, native>>>(p);
    });
    return;
  }
  const Access fastest = access_of(x, args.rows.data, args.transposed.data, groups);
  const bool rows_across = rows_cross && !args.transposed.data && fastest == Access::kVector;
  const bool crossed = rows_cross || transposed_cross;
  const Access access = crossed && !rows_across ? Access::kElement : fastest;
  dispatch(x, args.format, access, [&]<DType T, class Encoder, Access A>() {
    if constexpr (A == Access::kVector) {
      if (rows_across) {
        cast_kernel<T, Encoder, A, FromMemory, Layouts::kRowsAcross>
            <<<tiles, kTileThreads, 0, native>>>(p);
        return;
      }
    }
    cast_kernel<T, Encoder, A, FromMemory><<<tiles, kTileThreads, 0, native>>>(p);
  });
}

}  // namespace octavo::gpu
