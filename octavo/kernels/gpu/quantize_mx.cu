#include "octavo/kernels/gpu/quantize_mx.h"

#include "octavo/formats/e8m0.h"
#include "octavo/kernels/gpu/dispatch.h"
#include "octavo/kernels/gpu/tile_amax.h"

namespace octavo::gpu {
namespace {

constexpr int kBlock = 32;
constexpr int kBlocksPerTile = kTile / kBlock;  // codes of one row of a tile: one 32-bit word

OCTAVO_DEVICE std::int64_t ceil_blocks(std::int64_t n) { return (n + kBlock - 1) / kBlock; }

struct Codes {
  std::uint8_t* data;
  std::int64_t blocks;  // of a row of the layout
  std::int64_t group_bytes;

  // Codes of the tile's lines, four each: thread t stores line t's, or of 128x4 tiles the t-th
  // word. `present` of the lines are there, `count` of the codes.
  OCTAVO_DEVICE void store(MxScaleLayout layout, std::int64_t group, std::int64_t line,
                           std::int64_t block, std::int64_t present, int count,
                           const std::uint8_t (&codes)[kTile][kBlocksPerTile]) const {
    const int t = threadIdx.x;
    const auto word_of = [&](int i) { return *reinterpret_cast<const std::uint32_t*>(codes[i]); };
    if (layout == MxScaleLayout::kTiled128x4) {
      const std::int64_t first = mx_tiled_offset(line, block, blocks);
      *reinterpret_cast<std::uint32_t*>(data + first + 4 * t) = word_of(t % 4 * 32 + t / 4);
      return;
    }
    if (t >= present) return;
    const std::uint32_t word = word_of(t);
    std::uint8_t* const address = data + group * group_bytes + (line + t) * blocks + block;
    if (count >= kBlocksPerTile && reinterpret_cast<std::uintptr_t>(address) % 4 == 0) {
      store4_kept(address, word);
      return;
    }
#pragma unroll
    for (int i = 0; i < kBlocksPerTile; ++i) {
      if (i < count) address[i] = static_cast<std::uint8_t>(word >> (8 * i));
    }
  }
};

struct Params {
  Source x;
  Sink rows, transposed;
  Codes row, column;
  MxScaleLayout layout;
  Format format;
  MxRounding rounding;
  Producer from;
};

// Codes of four neighbours, the first in the lowest byte.
template <DType T, int N>
OCTAVO_DEVICE std::uint32_t four_codes(const std::uint32_t (&amax)[N], Format format,
                                       MxRounding rounding) {
  std::uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float a = internal::float_of(unpacked_bits<T>(amax, i));
    codes |= static_cast<std::uint32_t>(mx_code_of(a, format, rounding)) << (8 * i);
  }
  return codes;
}

OCTAVO_DEVICE void swap_if(bool condition, std::uint32_t& a, std::uint32_t& b) {
  const std::uint32_t old = a;
  a = condition ? b : a;
  b = condition ? old : b;
}

// inv_scale of four codes. Powers of two, 2^-127 and NaN are exact in bf16, so two travel in a
// word.
struct FourInvScales {
  std::uint32_t word[2];

  OCTAVO_DEVICE FourInvScales() : word{0, 0} {}
  OCTAVO_DEVICE explicit FourInvScales(std::uint32_t codes) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      word[i] = byte_permute<0x7632>(bits(codes >> (16 * i)), bits(codes >> (16 * i + 8)));
    }
  }
  OCTAVO_DEVICE FourInvScales from_lane_xor(int mask) const {
    FourInvScales other;
    other.word[0] = shuffle_xor(word[0], mask);
    other.word[1] = shuffle_xor(word[1], mask);
    return other;
  }
  OCTAVO_DEVICE float operator[](int i) const {
    return internal::float_of(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xFFFF0000u);
  }

 private:
  OCTAVO_DEVICE static std::uint32_t bits(std::uint32_t code) {
    return internal::bits_of(inv_scale_e8m0(static_cast<std::uint8_t>(code)));
  }
};

OCTAVO_DEVICE void swap_if(bool condition, FourInvScales& a, FourInvScales& b) {
  swap_if(condition, a.word[0], b.word[0]);
  swap_if(condition, a.word[1], b.word[1]);
}

// A 1x32 block is four lanes of a row, a 32x1 block two lanes of a column: all reductions stay in
// a quarter of a warp. Shared memory only gathers the codes for word-wide stores.
template <DType T, class Encoder, Access A, class P, int N>
__global__ void OCTAVO_LAUNCH_BOUNDS(kTileThreads, (blocks_per_multiprocessor<T, A>()))
    quantize_mx_kernel(const Together<Params, N> all) {
  if constexpr (!Encoder::exists()) return;
  __shared__ __align__(4) std::uint8_t row_codes[kTile][kBlocksPerTile];
  __shared__ __align__(4) std::uint8_t column_codes[kTile][kBlocksPerTile];
  const Params& p = all.mine();
  const Encoder encoder(p.format);
  const TileThread at;
  const TilePlace tile(p.x, all.block());

  ThreadTile<T> v;
  fill_tile<T, A, P>(v, p.from, p.x, tile, at);
  FourInvScales row_inv_scales[4], column_inv_scales[2];
  if (p.rows.data) {
    LineAmax<T, Line::kRow> amax(v);
    constexpr int kWords = LineAmax<T, Line::kRow>::kWords;
    spread_merge<T, kWords, 0, 2>(amax.word, at.lane);
    // This lane now holds four consecutive rows, group `mine`; the other groups are its three
    // neighbours', two lane bits away in reversed order.
    const int mine = (at.lane & 1) << 1 | (at.lane >> 1 & 1);
    const std::uint32_t codes = four_codes<T>(amax.word, encoder.format(), p.rounding);
    const int block = at.column / kBlock;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      row_codes[at.row + 4 * mine + i][block] = static_cast<std::uint8_t>(codes >> (8 * i));
    }
    row_inv_scales[0] = FourInvScales(codes);
    row_inv_scales[1] = row_inv_scales[0].from_lane_xor(2);
    row_inv_scales[2] = row_inv_scales[0].from_lane_xor(1);
    row_inv_scales[3] = row_inv_scales[0].from_lane_xor(3);
    swap_if(mine & 1, row_inv_scales[0], row_inv_scales[1]);
    swap_if(mine & 1, row_inv_scales[2], row_inv_scales[3]);
    swap_if(mine & 2, row_inv_scales[0], row_inv_scales[2]);
    swap_if(mine & 2, row_inv_scales[1], row_inv_scales[3]);
  }
  if (p.transposed.data) {
    LineAmax<T, Line::kColumn> amax(v);
    constexpr int kWords = Packed<T>::kWords;
    spread_merge<T, kWords, 3, 1>(amax.word, at.lane);
    const int mine = at.lane >> 3 & 1;  // this lane holds columns 4 * mine .. 4 * mine + 3
    const std::uint32_t codes = four_codes<T>(amax.word, encoder.format(), p.rounding);
    const int block = at.row / kBlock;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      column_codes[at.column + 4 * mine + i][block] = static_cast<std::uint8_t>(codes >> (8 * i));
    }
    column_inv_scales[0] = FourInvScales(codes);
    column_inv_scales[1] = column_inv_scales[0].from_lane_xor(8);
    swap_if(mine, column_inv_scales[0], column_inv_scales[1]);
  }
  float row_inv_scale[kThreadRows], column_inv_scale[kThreadColumns];
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) row_inv_scale[r] = row_inv_scales[r / 4][r % 4];
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) column_inv_scale[c] = column_inv_scales[c / 4][c % 4];
  convert_and_store<A>(v, encoder, row_inv_scale, column_inv_scale, p.rows, p.transposed, p.x, tile,
                       at);
  // The codes last: until here no warp waits for another.
  __syncthreads();
  const std::int64_t columns = p.x.columns - tile.k;  // left
  if (p.rows.data) {
    const auto count = static_cast<int>(columns < kTile ? ceil_blocks(columns) : kBlocksPerTile);
    p.row.store(p.layout, tile.group, tile.m, tile.k / kBlock, tile.rows, count, row_codes);
  }
  if (p.transposed.data) {
    p.column.store(p.layout, tile.group, tile.k, tile.column / kBlock, columns,
                   static_cast<int>(ceil_blocks(tile.columns)), column_codes);
  }
}

Params params_of(const QuantizeMxArgs& args) {
  const Matrix& x = args.x;
  const Groups& groups = args.groups;
  const std::int64_t row_blocks = ceil_div(x.columns, kBlock);
  const std::int64_t column_blocks = ceil_div(groups.tiles ? groups.columns : x.rows, kBlock);
  return {source_of(x, groups),
          rows_sink(args.rows.data, x, groups),
          transposed_sink(args.transposed.data, x, groups),
          {args.rows.scale, row_blocks, groups.tiles ? 0 : x.rows * row_blocks},
          {args.transposed.scale, column_blocks, groups.tiles ? 0 : x.columns * column_blocks},
          args.scale_layout,
          args.format,
          args.rounding,
          args.from};
}

}  // namespace

void quantize_mx(const QuantizeMxArgs& args, Stream stream) {
  const Matrix& x = args.x;
  const Groups& groups = args.groups;
  const unsigned tiles = tile_count(x, groups);
  if (tiles == 0) return;
  const Params p = params_of(args);
  const auto native = static_cast<NativeStream>(stream);
  if (args.from) {
    return dispatch_produced(args.from, args.format, groups.tiles,
                             [&]<DType T, class Encoder, Access A, class P>() {
                               quantize_mx_kernel<T, Encoder, A, P, 1>
                                   <<<tiles, kTileThreads, 0, native>>>(Together<Params, 1>{{p}});
                             });
  }
  dispatch(x, args.format, access_of(x, args.rows.data, args.transposed.data, groups),
           [&]<DType T, class Encoder, Access A>() {
             quantize_mx_kernel<T, Encoder, A, FromMemory, 1>
                 <<<tiles, kTileThreads, 0, native>>>(Together<Params, 1>{{p}});
           });
}

void quantize_mx_pair(const QuantizeMxArgs& first, const QuantizeMxArgs& second, Stream stream) {
  const unsigned tiles = tile_count(first.x);
  if (tiles == 0) return;
  const Params p[2] = {params_of(first), params_of(second)};
  dispatch_pair(first.format, [&]<DType T, class Encoder, Access A, class P>() {
    quantize_mx_kernel<T, Encoder, A, P, 2>
        <<<2 * tiles, kTileThreads, 0, static_cast<NativeStream>(stream)>>>(
            Together<Params, 2>{{p[0], p[1]}});
  });
}

}  // namespace octavo::gpu
