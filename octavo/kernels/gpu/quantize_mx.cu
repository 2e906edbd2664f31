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

OCTAVO_DEVICE float factor_of(std::uint32_t codes, int i) {
  return inv_scale_e8m0(static_cast<std::uint8_t>(codes >> (8 * i)));
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
  std::uint32_t row_word[4] = {}, column_word[2] = {};  // codes of this thread's rows and columns
  if (p.rows.data) {
    RowAmax<T> amax(v);
    constexpr int kWords = RowAmax<T>::kWords;
    spread_merge<T, kWords, 0, 2>(amax.word, at.lane);
    // This lane now holds four consecutive rows, group `mine`; the other groups are its three
    // neighbours', two lane bits away in reversed order.
    const int mine = (at.lane & 1) << 1 | (at.lane >> 1 & 1);
    row_word[0] = four_codes<T>(amax.word, encoder.format(), p.rounding);
    const int block = at.column / kBlock;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      row_codes[at.row + 4 * mine + i][block] = static_cast<std::uint8_t>(row_word[0] >> (8 * i));
    }
    row_word[1] = shuffle_xor(row_word[0], 2);
    row_word[2] = shuffle_xor(row_word[0], 1);
    row_word[3] = shuffle_xor(row_word[0], 3);
    swap_if(mine & 1, row_word[0], row_word[1]);
    swap_if(mine & 1, row_word[2], row_word[3]);
    swap_if(mine & 2, row_word[0], row_word[2]);
    swap_if(mine & 2, row_word[1], row_word[3]);
  }
  if (p.transposed.data) {
    ColumnAmax<T> amax(v);
    constexpr int kWords = Packed<T>::kWords;
    spread_merge<T, kWords, 3, 1>(amax.word, at.lane);
    const int mine = at.lane >> 3 & 1;  // this lane holds columns 4 * mine .. 4 * mine + 3
    column_word[0] = four_codes<T>(amax.word, encoder.format(), p.rounding);
    const int block = at.row / kBlock;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      column_codes[at.column + 4 * mine + i][block] =
          static_cast<std::uint8_t>(column_word[0] >> (8 * i));
    }
    column_word[1] = shuffle_xor(column_word[0], 8);
    swap_if(mine, column_word[0], column_word[1]);
  }
  if (is_present<A>(p.x, m, k)) {
    float row_factor[kThreadRows], column_factor[kThreadColumns];
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) row_factor[r] = factor_of(row_word[r / 4], r % 4);
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c)
      column_factor[c] = factor_of(column_word[c / 4], c % 4);
    convert_and_store<T, Encoder, A>(v, encoder, row_factor, column_factor, p.rows, p.transposed,
                                     p.x, m, k);
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
