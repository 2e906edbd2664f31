#include "octavo/kernels/gpu/quantize_mx.h"

#include "octavo/formats/e8m0.h"
#include "octavo/kernels/gpu/dispatch.h"
#include "octavo/kernels/gpu/tile.h"

namespace octavo::gpu {
namespace {

constexpr int kBlock = 32;
constexpr int kBlocksPerTile = kTile / kBlock;  // codes of one row of a tile: one 32-bit word

struct Codes {
  std::uint8_t* data;
  std::int64_t rows, blocks;  // of the layout

  // Four codes of one row of the layout, from block `first` (a multiple of four) on.
  OCTAVO_DEVICE void store(MxScaleLayout layout, std::int64_t row, std::int64_t first,
                           std::uint32_t codes) const {
    if (!data) return;
    if (layout == MxScaleLayout::kTiled128x4) {
      *reinterpret_cast<std::uint32_t*>(data + mx_tiled_offset(row, first, blocks)) = codes;
      return;
    }
    if (row >= rows) return;
    std::uint8_t* address = data + row * blocks + first;
    if (first + kBlocksPerTile <= blocks && reinterpret_cast<std::uintptr_t>(address) % 4 == 0) {
      *reinterpret_cast<std::uint32_t*>(address) = codes;
      return;
    }
#pragma unroll
    for (int i = 0; i < kBlocksPerTile; ++i) {
      if (first + i < blocks) address[i] = static_cast<std::uint8_t>(codes >> (8 * i));
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
template <DType T, class Encoder, Access A>
__global__ void OCTAVO_LAUNCH_BOUNDS(kTileThreads, (blocks_per_multiprocessor<T, A>()))
    quantize_mx_kernel(const Params p) {
  __shared__ std::uint8_t row_codes[kTile][kBlocksPerTile];
  __shared__ std::uint8_t column_codes[kTile][kBlocksPerTile];
  const Encoder encoder(p.format);
  const TileThread at;
  const TileOrigin tile(p.x);
  const std::int64_t m = tile.m + at.row, k = tile.k + at.column;
  const int t = threadIdx.x;

  ThreadTile<T> v;
  load_tile<T, A>(v, p.x, m, k);
  FourInvScales row_inv_scales[4], column_inv_scales[2];
  if (p.rows.data) {
    RowAmax<T> amax(v);
    constexpr int kWords = RowAmax<T>::kWords;
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
    ColumnAmax<T> amax(v);
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
  if (is_present<A>(p.x, m, k)) {
    float row_inv_scale[kThreadRows], column_inv_scale[kThreadColumns];
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) row_inv_scale[r] = row_inv_scales[r / 4][r % 4];
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) column_inv_scale[c] = column_inv_scales[c / 4][c % 4];
    convert_and_store<T, Encoder, A>(v, encoder, row_inv_scale, column_inv_scale, p.rows,
                                     p.transposed, p.x, m, k);
  }
  // The codes last: until here no warp waits for another.
  __syncthreads();
  const auto word_of = [&](const std::uint8_t* codes) {
    return codes[0] | codes[1] << 8 | codes[2] << 16 | static_cast<std::uint32_t>(codes[3]) << 24;
  };
  if (p.rows.data) p.row.store(p.layout, tile.m + t, tile.k / kBlock, word_of(row_codes[t]));
  if (p.transposed.data) {
    p.column.store(p.layout, tile.k + t, tile.m / kBlock, word_of(column_codes[t]));
  }
}

struct Launch {
  const Params& p;
  unsigned tiles;
  NativeStream stream;

  template <DType T, class Encoder, Access A>
  void run() const {
    quantize_mx_kernel<T, Encoder, A><<<tiles, kTileThreads, 0, stream>>>(p);
  }
};

}  // namespace

void quantize_mx(const QuantizeMxArgs& args, Stream stream) {
  const Matrix& x = args.x;
  if (x.rows == 0 || x.columns == 0) return;
  const Params p{source_of(x),
                 {args.rows.data, x.columns},
                 {args.transposed.data, x.rows},
                 {args.rows.scale, x.rows, ceil_div(x.columns, kBlock)},
                 {args.transposed.scale, x.columns, ceil_div(x.rows, kBlock)},
                 args.scale_layout,
                 args.format,
                 args.rounding};
  dispatch(x, args.format, takes_vectors(x, args.rows.data, args.transposed.data),
           Launch{p, tile_count(x), static_cast<NativeStream>(stream)});
}

}  // namespace octavo::gpu
