#pragma once

#include "octavo/kernels/gpu/launch.h"
#include "octavo/kernels/gpu/packed.h"

/// The 128 x 128 tile every kernel that writes FP8 works on, and the way a thread reads it and
/// writes both layouts.
///
/// A block of 128 threads owns a tile; a thread owns 16 rows x 8 columns of it, which it converts
/// and transposes in registers by byte permutes: 16 bytes of eight transposed rows, 8 bytes of
/// sixteen rows. Threads lie so that 32 neighbours cover 64 rows x 64 columns: whole 32-byte
/// sectors, and whole 128-byte lines per pair of warps, in both layouts.
namespace octavo::gpu {

inline constexpr int kTile = 128;
inline constexpr int kTileThreads = 128;
inline constexpr int kThreadRows = 16;
inline constexpr int kThreadColumns = 8;

/// Bits 0-2 of the thread number count columns, 3-5 rows, 6 the halves of the columns. Lanes 0-31
/// of a warp are thus 8 (columns) x 4 (rows), a wavefront of 64 is 8 x 8.
struct TileThread {
  int lane;
  int row;     ///< first row inside the tile
  int column;  ///< first column inside the tile

  OCTAVO_DEVICE TileThread() {
    const int t = threadIdx.x;
    lane = t & 31;
    row = (t >> 3 & 7) * kThreadRows;
    column = ((t & 7) | (t >> 6) << 3) * kThreadColumns;
  }
};

/// x, as kernels see it.
struct Source {
  const char* data;
  std::int64_t rows, columns, row_bytes, column_bytes;
};

inline Source source_of(const Matrix& x) {
  const std::int64_t element = bytes_of(x.dtype);
  return {static_cast<const char*>(x.data), x.rows, x.columns, x.row_stride * element,
          x.column_stride * element};
}

/// How a kernel instance touches memory. kVector: every thread's 16 x 8 is whole or absent and
/// 16-byte vectors are aligned. kElement: anything else, element by element, byte by byte.
enum class Access { kVector, kElement };

/// Blocks of kTileThreads that share a multiprocessor: what the registers of a whole tile leave.
/// Four (128 registers a thread) read and write fastest on an H200; measured 3, 4, 5 and 6.
template <DType T, Access A>
constexpr int blocks_per_multiprocessor() {
  return T == DType::kFP32 || A == Access::kElement ? 2 : 4;
}

/// A thread's 16 rows of eight elements.
template <DType T>
struct ThreadTile {
  Vec8<T> row[kThreadRows];
};

/// Reads the thread's part of the tile at (m, k); zeros outside x.
template <DType T, Access A>
OCTAVO_DEVICE void load_tile(ThreadTile<T>& tile, const Source& x, std::int64_t m, std::int64_t k) {
  const char* address = x.data + m * x.row_bytes + k * x.column_bytes;
  if constexpr (A == Access::kVector) {
    const bool present = m < x.rows && k < x.columns;
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      if (present) {
        tile.row[r].load_streaming(address + r * x.row_bytes);
      } else {
        tile.row[r].clear();
      }
    }
  } else {
    const std::int64_t left = x.columns - k;
    const int count = left >= 8 ? 8 : left < 0 ? 0 : static_cast<int>(left);
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      tile.row[r].gather(address + r * x.row_bytes, x.column_bytes, m + r < x.rows ? count : 0);
    }
  }
}

/// One layout's bytes.
struct Sink {
  std::uint8_t* data;  ///< null: this layout is not wanted
  std::int64_t row_bytes;
};

/// Eight bytes of one row of the rows layout.
template <Access A>
OCTAVO_DEVICE void store_row(const Sink& out, std::int64_t rows, std::int64_t columns,
                             std::int64_t m, std::int64_t k, Words2 bytes) {
  std::uint8_t* address = out.data + m * out.row_bytes + k;
  if constexpr (A == Access::kVector) {
    store8_streaming(address, bytes);
  } else {
    if (m >= rows) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t word = i < 4 ? bytes.x : bytes.y;
      if (k + i < columns) address[i] = static_cast<std::uint8_t>(word >> (8 * (i % 4)));
    }
  }
}

/// The transposed layout of 16 rows x 8 columns of bytes: words[h][r] holds columns 4h..4h+3 of
/// row r.
template <Access A>
OCTAVO_DEVICE void store_transposed(const Sink& out, std::int64_t rows, std::int64_t columns,
                                    std::int64_t m, std::int64_t k,
                                    const std::uint32_t (&words)[2][kThreadRows]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    std::uint32_t column[4][4];  // [column][four rows]
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const std::uint32_t a0 = words[h][4 * b], a1 = words[h][4 * b + 1];
      const std::uint32_t a2 = words[h][4 * b + 2], a3 = words[h][4 * b + 3];
      const std::uint32_t low01 = byte_permute<0x5140>(a0, a1);
      const std::uint32_t low23 = byte_permute<0x5140>(a2, a3);
      const std::uint32_t high01 = byte_permute<0x7362>(a0, a1);
      const std::uint32_t high23 = byte_permute<0x7362>(a2, a3);
      column[0][b] = byte_permute<0x5410>(low01, low23);
      column[1][b] = byte_permute<0x7632>(low01, low23);
      column[2][b] = byte_permute<0x5410>(high01, high23);
      column[3][b] = byte_permute<0x7632>(high01, high23);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const std::int64_t line = k + 4 * h + c;
      std::uint8_t* address = out.data + line * out.row_bytes + m;
      if constexpr (A == Access::kVector) {
        store16_streaming(address, {column[c][0], column[c][1], column[c][2], column[c][3]});
      } else {
        if (line >= columns) continue;
#pragma unroll
        for (int i = 0; i < kThreadRows; ++i) {
          if (m + i < rows) {
            address[i] = static_cast<std::uint8_t>(column[c][i / 4] >> (8 * (i % 4)));
          }
        }
      }
    }
  }
}

/// Quantises and stores the thread's 16 x 8 in the wanted layouts. row_inv_scale: the inv_scale of
/// each of the 16 rows (rows layout); column_inv_scale: of each of the 8 columns (transposed
/// layout).
template <DType T, class Encoder, Access A>
OCTAVO_DEVICE void convert_and_store(const ThreadTile<T>& tile, const Encoder& encoder,
                                     const float* row_inv_scale, const float* column_inv_scale,
                                     const Sink& rows_out, const Sink& transposed_out,
                                     const Source& x, std::int64_t m, std::int64_t k) {
  // One loop for both layouts: every element is widened once.
  float c[kThreadColumns] = {};
  if (transposed_out.data) {
#pragma unroll
    for (int i = 0; i < kThreadColumns; ++i) c[i] = column_inv_scale[i];
  }
  std::uint32_t words[2][kThreadRows];
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = tile.row[r][i];
    if (rows_out.data) {
      const float f = row_inv_scale[r];
      store_row<A>(rows_out, x.rows, x.columns, m + r, k,
                   {encoder(v[0] * f, v[1] * f, v[2] * f, v[3] * f),
                    encoder(v[4] * f, v[5] * f, v[6] * f, v[7] * f)});
    }
    if (transposed_out.data) {
      words[0][r] = encoder(v[0] * c[0], v[1] * c[1], v[2] * c[2], v[3] * c[3]);
      words[1][r] = encoder(v[4] * c[4], v[5] * c[5], v[6] * c[6], v[7] * c[7]);
    }
  }
  if (transposed_out.data) store_transposed<A>(transposed_out, x.rows, x.columns, m, k, words);
}

/// fp32 to FP8 in a format fixed when the kernel is compiled.
template <Format F>
struct StaticEncoder {
  OCTAVO_DEVICE explicit StaticEncoder(Format) {}
  OCTAVO_DEVICE static constexpr Format format() { return F; }
  OCTAVO_DEVICE std::uint32_t operator()(float x0, float x1, float x2, float x3) const {
    return encode4<F>(x0, x1, x2, x3);
  }
};

/// Four values to four bytes of a format chosen at run time. One function, not inlined: kernels
/// that use it are for odd shapes and simulated formats, and stay small.
OCTAVO_NOINLINE_DEVICE std::uint32_t encode4_any(Format format, float x0, float x1, float x2,
                                                 float x3) {
  switch (format) {
    case Format::kE4M3FN:
      return encode4<Format::kE4M3FN>(x0, x1, x2, x3);
    case Format::kE5M2:
      return encode4<Format::kE5M2>(x0, x1, x2, x3);
    case Format::kE4M3FNUZ:
      return encode4<Format::kE4M3FNUZ>(x0, x1, x2, x3);
    default:
      return encode4<Format::kE5M2FNUZ>(x0, x1, x2, x3);
  }
}

/// fp32 to FP8 in a format chosen at run time.
struct DynamicEncoder {
  Format chosen;
  OCTAVO_DEVICE explicit DynamicEncoder(Format f) : chosen(f) {}
  OCTAVO_DEVICE Format format() const { return chosen; }
  OCTAVO_DEVICE std::uint32_t operator()(float x0, float x1, float x2, float x3) const {
    return encode4_any(chosen, x0, x1, x2, x3);
  }
};

/// inv_scale_of() without double precision: fp32 division rounded to nearest gives the same bits
/// above the floor, and at or below it it is a constant of the format.
OCTAVO_DEVICE float inv_scale_on_device(float amax, Format format, ScaleRounding rounding) {
  if (amax != amax) return amax;
  constexpr float floor_below = static_cast<float>(kAmaxFloor);
  static_assert(static_cast<double>(floor_below) <= kAmaxFloor);
  const float max = limits(format).max;
  float inv_scale = divide_rn(max, amax);
  if (!(amax > floor_below)) {
    inv_scale = static_cast<float>(static_cast<double>(max) / kAmaxFloor);
  }
  if (rounding == ScaleRounding::kNone) return inv_scale;
  return internal::float_of(internal::bits_of(inv_scale) & 0xFF800000u);
}

OCTAVO_DEVICE float scale_on_device(float inv_scale) {
  if (inv_scale == 0.0f) return internal::float_of(0x7F800000u);
  return divide_rn(1.0f, inv_scale);
}

/// Where a block's tile begins. Blocks walk along K first: along M, or in squares, both layouts
/// are written 2-3% more slowly.
struct TileOrigin {
  std::int64_t m, k;

  OCTAVO_DEVICE explicit TileOrigin(const Source& x) {
    const unsigned tiles_k = static_cast<unsigned>((x.columns + kTile - 1) / kTile);
    m = static_cast<std::int64_t>(blockIdx.x / tiles_k) * kTile;
    k = static_cast<std::int64_t>(blockIdx.x % tiles_k) * kTile;
  }
};

inline unsigned tile_count(const Matrix& x) {
  return static_cast<unsigned>(ceil_div(x.rows, kTile) * ceil_div(x.columns, kTile));
}

/// Whether the thread at (m, k) has anything to store. kElement checks every byte instead.
template <Access A>
OCTAVO_DEVICE bool is_present(const Source& x, std::int64_t m, std::int64_t k) {
  return A == Access::kElement || (m < x.rows && k < x.columns);
}

/// Per row of a thread's tile the largest magnitudes of its eight columns, rows packed in pairs
/// for 16-bit types: word i holds rows 2i and 2i + 1 (fp32: row i).
template <DType T>
struct RowAmax {
  static constexpr int kPerWord = Packed<T>::kHalfWords ? 2 : 1;
  static constexpr int kWords = kThreadRows / kPerWord;
  std::uint32_t word[kWords];

  OCTAVO_DEVICE explicit RowAmax(const ThreadTile<T>& tile) {
    using P = Packed<T>;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      std::uint32_t all[2] = {0, 0};
#pragma unroll
      for (int j = 0; j < kPerWord; ++j) {
#pragma unroll
        for (int w = 0; w < P::kWords; ++w) {
          all[j] = P::merge(all[j], P::magnitude(tile.row[i * kPerWord + j].word[w]));
        }
      }
      word[i] = merge_pair<T>(all);
    }
  }
};

/// Per column the largest magnitudes of a thread's sixteen rows, packed as the input is.
template <DType T>
struct ColumnAmax {
  static constexpr int kPerWord = Packed<T>::kHalfWords ? 2 : 1;
  std::uint32_t word[Packed<T>::kWords];

  OCTAVO_DEVICE explicit ColumnAmax(const ThreadTile<T>& tile) {
    using P = Packed<T>;
#pragma unroll
    for (int w = 0; w < P::kWords; ++w) {
      word[w] = 0;
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) {
        word[w] = P::merge(word[w], P::magnitude(tile.row[r].word[w]));
      }
    }
  }
};

/// Element `i` of packed words, as fp32 bits.
template <DType T, int N>
OCTAVO_DEVICE std::uint32_t unpacked_bits(const std::uint32_t (&words)[N], int i) {
  using P = Packed<T>;
  if constexpr (!P::kHalfWords) return words[i];
  const std::uint32_t word = words[i / 2];
  return internal::bits_of(P::to_float(i % 2 == 0 ? word & 0xFFFFu : word >> 16));
}

/// Amaxes of the tile's rows as fp32 bits: a warp reduces 64 columns, so the maximum of out[0][r]
/// and out[1][r], after a __syncthreads, is row r's.
template <DType T>
OCTAVO_DEVICE void reduce_rows(const ThreadTile<T>& tile, const TileThread& at,
                               std::uint32_t (&out)[2][kTile]) {
  RowAmax<T> amax(tile);
  constexpr int kWords = RowAmax<T>::kWords;
  spread_merge<T, kWords, 0, 3>(amax.word, at.lane);
  const int first = first_word_after_spread<kWords, 0, 3>(at.lane) * RowAmax<T>::kPerWord;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    out[threadIdx.x >> 6][at.row + first + i] = unpacked_bits<T>(amax.word, i);
  }
}

/// The same for the tile's columns, of which a warp reduces 64 rows.
template <DType T>
OCTAVO_DEVICE void reduce_columns(const ThreadTile<T>& tile, const TileThread& at,
                                  std::uint32_t (&out)[2][kTile]) {
  ColumnAmax<T> amax(tile);
  constexpr int kWords = Packed<T>::kWords;
  spread_merge<T, kWords, 3, 2>(amax.word, at.lane);
  const int first = first_word_after_spread<kWords, 3, 2>(at.lane) * ColumnAmax<T>::kPerWord;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    out[threadIdx.x >> 5 & 1][at.column + first + i] = unpacked_bits<T>(amax.word, i);
  }
}

}  // namespace octavo::gpu
