#pragma once

#include "octavo/kernels/gpu/byte_transpose.h"
#include "octavo/kernels/gpu/encoder.h"
#include "octavo/kernels/gpu/groups.h"
#include "octavo/kernels/gpu/launch.h"
#include "octavo/kernels/gpu/packed.h"
#include "octavo/kernels/gpu/produce.h"

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

/// x and its groups, as kernels see them.
struct Source {
  const char* data;
  std::int64_t rows, columns, row_bytes, column_bytes, group_bytes;
  const GroupTile* tiles;
  unsigned tiles_of_group, tiles_across;
  int groups;
};

inline Source source_of(const Matrix& x, const Groups& groups = {}) {
  const std::int64_t element = bytes_of(x.dtype);
  return {static_cast<const char*>(x.data),
          x.rows,
          x.columns,
          x.row_stride * element,
          x.column_stride * element,
          groups.stride * element,
          groups.tiles,
          static_cast<unsigned>(ceil_div(x.rows, kTile)),
          static_cast<unsigned>(ceil_div(x.columns, kTile)),
          static_cast<int>(groups.count)};
}

/// Blocks of kTileThreads a launch over all tiles has.
inline unsigned tile_count(const Matrix& x, const Groups& groups = {}) {
  const std::int64_t down =
      groups.tiles ? groups.tile_count : groups.count * ceil_div(x.rows, kTile);
  return static_cast<unsigned>(down * ceil_div(x.columns, kTile));
}

/// How a kernel instance touches memory. kVector: every thread's 16 x 8 is whole or absent and
/// 16-byte vectors are aligned. kRagged: vectors too, but a group may end at any row. kElement:
/// anything else, element by element, byte by byte.
enum class Access : std::uint8_t { kVector, kRagged, kElement };

/// Blocks of kTileThreads that share a multiprocessor: what the registers of a whole tile leave.
/// Four (128 registers a thread) read and write fastest on an H200; measured 3, 4, 5 and 6.
template <DType T, Access A>
constexpr int blocks_per_multiprocessor() {
  return T == DType::kFP32 || A == Access::kElement ? 2 : 4;
}

/// Where a block's tile lies. Blocks walk along K first: along M, or in squares, both layouts are
/// written 2-3% more slowly. An index into a layout or its scales is that inside the group, with
/// the group's own stride (0 with offsets, which count over all groups).
struct TilePlace {
  std::int64_t group;
  std::int64_t m, k;    ///< of the tile's first element
  std::int64_t column;  ///< m in the transposed layout
  int rows, columns;    ///< rows of the tile, and columns of the transposed layout with padding
  int loaded;           ///< rows that are read: none in a tile of no group
  bool first;           ///< whether it is its group's first along M

  OCTAVO_DEVICE explicit TilePlace(const Source& x, unsigned block = blockIdx.x) {
    unsigned down = block / x.tiles_across;
    k = static_cast<std::int64_t>(block % x.tiles_across) * kTile;
    if (x.tiles) {
      const GroupTile tile = x.tiles[down];
      group = tile.group;
      m = tile.row;
      column = tile.column;
      rows = tile.rows;
      columns = tile.columns;
      loaded = tile.group < x.groups ? tile.rows : 0;
      first = tile.first;
    } else {
      group = 0;
      if (x.groups > 1) {
        group = down / x.tiles_of_group;
        down %= x.tiles_of_group;
      }
      m = column = static_cast<std::int64_t>(down) * kTile;
      const std::int64_t left = x.rows - m;
      rows = columns = loaded = left < kTile ? static_cast<int>(left) : kTile;
      first = down == 0;
    }
  }
};

/// Whether the thread has anything to store. kElement checks every byte instead.
template <Access A>
OCTAVO_DEVICE bool is_present(const Source& x, const TilePlace& tile, const TileThread& at) {
  return A == Access::kElement || (at.row < tile.columns && tile.k + at.column < x.columns);
}

/// A thread's 16 rows of eight elements.
template <DType T>
struct ThreadTile {
  Vec8<T> row[kThreadRows];
};

/// Reads the thread's part of the tile; zeros where nothing is.
template <DType T, Access A>
OCTAVO_DEVICE void load_tile(ThreadTile<T>& v, const Source& x, const TilePlace& tile,
                             const TileThread& at) {
  const char* address = x.data + tile.group * x.group_bytes + (tile.m + at.row) * x.row_bytes +
                        (tile.k + at.column) * x.column_bytes;
  const std::int64_t left = x.columns - tile.k - at.column;
  if constexpr (A == Access::kVector) {
    if (at.row < tile.loaded && left > 0) {
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) v.row[r].load_streaming(address + r * x.row_bytes);
    } else {
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) v.row[r].clear();
    }
  } else if constexpr (A == Access::kRagged) {
    const int present = left > 0 ? tile.loaded - at.row : 0;
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      v.row[r].clear();
      if (r < present) v.row[r].load_streaming(address + r * x.row_bytes);
    }
  } else {
    const int count = left >= 8 ? 8 : left < 0 ? 0 : static_cast<int>(left);
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      v.row[r].gather(address + r * x.row_bytes, x.column_bytes,
                      at.row + r < tile.loaded ? count : 0);
    }
  }
}

/// The same by a producer P, of the matrix whose shape x has.
template <DType T, Access A, class P>
OCTAVO_DEVICE void fill_tile(ThreadTile<T>& v, [[maybe_unused]] const Producer& from,
                             const Source& x, const TilePlace& tile, const TileThread& at) {
  if constexpr (!P::kProduces) {
    load_tile<T, A>(v, x, tile, at);
  } else {
    static_assert(A != Access::kElement);
    const int present = tile.k + at.column < x.columns ? tile.loaded - at.row : 0;
    if (present > 0) {
      const typename P::template Rows<T> rows(from, tile.m + at.row, tile.k + at.column);
      rows.read(v.row, 0, A == Access::kVector ? kThreadRows : present);
    } else {
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) v.row[r].clear();
    }
  }
}

/// One layout's bytes.
struct Sink {
  std::uint8_t* data;  ///< null: this layout is not wanted
  std::int64_t row_bytes, group_bytes;
  /// Scaled along the other axis: the rows layout by columns, the transposed one by rows. Only
  /// kElement instances can, and those of Layouts::kRowsAcross.
  bool crossed;
};

inline Sink rows_sink(std::uint8_t* data, const Matrix& x, const Groups& groups = {},
                      bool crossed = false) {
  return {data, x.columns, groups.tiles ? 0 : x.rows * x.columns, crossed};
}

inline Sink transposed_sink(std::uint8_t* data, const Matrix& x, const Groups& groups = {},
                            bool crossed = false) {
  return {data, groups.tiles ? groups.columns : x.rows, groups.tiles ? 0 : x.rows * x.columns,
          crossed};
}

/// Writes the thread's 16 x 8 bytes of the rows layout, a row at a time.
template <Access A>
struct RowWriter {
  std::uint8_t* address;
  std::int64_t row_bytes;
  int rows, columns;  // left

  OCTAVO_DEVICE RowWriter(const Sink& out, const Source& x, const TilePlace& tile,
                          const TileThread& at) {
    address = out.data;
    if (address) {
      address +=
          tile.group * out.group_bytes + (tile.m + at.row) * out.row_bytes + tile.k + at.column;
    }
    row_bytes = out.row_bytes;
    rows = tile.rows - at.row;
    const std::int64_t left = x.columns - tile.k - at.column;
    columns = left < kThreadColumns ? static_cast<int>(left) : kThreadColumns;
  }

  OCTAVO_DEVICE void store(int r, Words2 bytes) const {
    std::uint8_t* to = address + r * row_bytes;
    if constexpr (A == Access::kVector) {
      store8_streaming(to, bytes);
    } else if constexpr (A == Access::kRagged) {
      if (r < rows) store8_streaming(to, bytes);
    } else {
      if (r >= rows) return;
#pragma unroll
      for (int i = 0; i < kThreadColumns; ++i) {
        const std::uint32_t word = i < 4 ? bytes.x : bytes.y;
        if (i < columns) to[i] = static_cast<std::uint8_t>(word >> (8 * (i % 4)));
      }
    }
  }
};

/// Writes the transposed layout of 16 rows x 8 columns of bytes: words[h][r] holds columns
/// 4h..4h+3 of row r.
template <Access A>
OCTAVO_DEVICE void store_transposed(const Sink& out, const Source& x, const TilePlace& tile,
                                    const TileThread& at,
                                    const std::uint32_t (&words)[2][kThreadRows]) {
  std::uint8_t* const address = out.data + tile.group * out.group_bytes +
                                (tile.k + at.column) * out.row_bytes + tile.column + at.row;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    std::uint32_t column[4][4];  // [column][four rows]
    transpose_words(words[h], column);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int line = 4 * h + c;
      std::uint8_t* to = address + line * out.row_bytes;
      if constexpr (A != Access::kElement) {
        store16_streaming(to, {column[c][0], column[c][1], column[c][2], column[c][3]});
      } else {
        if (tile.k + at.column + line >= x.columns) continue;
#pragma unroll
        for (int i = 0; i < kThreadRows; ++i) {
          if (at.row + i < tile.columns) {
            to[i] = static_cast<std::uint8_t>(column[c][i / 4] >> (8 * (i % 4)));
          }
        }
      }
    }
  }
}

/// What an instance writes, as far as it is compiled for it: whatever layouts there are, both, or
/// rows alone, scaled by columns.
enum class Layouts : std::uint8_t { kAny, kBoth, kRowsAcross };

/// Quantises and stores the thread's 16 x 8, in one loop for both layouts, so that every element is
/// widened once.
template <Layouts L, Access A, DType T, class Encoder>
OCTAVO_DEVICE void convert_and_store_layouts(const ThreadTile<T>& v, const Encoder& encoder,
                                             const float* row_inv_scale,
                                             const float* column_inv_scale, const Sink& rows_out,
                                             const Sink& transposed_out, const Source& x,
                                             const TilePlace& tile, const TileThread& at) {
  constexpr bool kAcross = L == Layouts::kRowsAcross;
  constexpr bool kCanCross = A == Access::kElement || kAcross;
  const bool rows = L != Layouts::kAny || rows_out.data;
  const bool transposed = L == Layouts::kBoth || (!kAcross && transposed_out.data);
  float c[kThreadColumns] = {};
  if (transposed || kCanCross) {
#pragma unroll
    for (int i = 0; i < kThreadColumns; ++i) c[i] = column_inv_scale[i];
  }
  const RowWriter<A> row_writer(rows_out, x, tile, at);
  std::uint32_t words[2][kThreadRows];
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    float e[kThreadColumns];
#pragma unroll
    for (int i = 0; i < kThreadColumns; ++i) e[i] = v.row[r][i];
    // Four bytes from element i on, by the row's factor or the columns'.
    const float f = !kAcross && (rows || kCanCross) ? row_inv_scale[r] : 0.0f;
    const auto four = [&](int i, bool by_columns) {
      const auto scaled = [&](int j) { return e[j] * (by_columns ? c[j] : f); };
      return encoder(scaled(i), scaled(i + 1), scaled(i + 2), scaled(i + 3));
    };
    if (rows) {
      const bool by_columns = kAcross || (kCanCross && rows_out.crossed);
      row_writer.store(r, {four(0, by_columns), four(4, by_columns)});
    }
    if (transposed) {
      const bool by_columns = !(kCanCross && transposed_out.crossed);
      // Padding is zero in a column of NaN too.
      const bool padding = A != Access::kVector && at.row + r >= tile.loaded;
      words[0][r] = padding ? 0u : four(0, by_columns);
      words[1][r] = padding ? 0u : four(4, by_columns);
    }
  }
  if (transposed) store_transposed<A>(transposed_out, x, tile, at, words);
}

/// The same for the layouts that are wanted. row_inv_scale: the inv_scale of each of the 16 rows;
/// column_inv_scale: of each of the 8 columns; each counts where a layout is scaled along it.
template <Access A, DType T, class Encoder>
OCTAVO_DEVICE void convert_and_store(const ThreadTile<T>& v, const Encoder& encoder,
                                     const float* row_inv_scale, const float* column_inv_scale,
                                     const Sink& rows_out, const Sink& transposed_out,
                                     const Source& x, const TilePlace& tile, const TileThread& at) {
  if (!is_present<A>(x, tile, at)) return;
  if (A != Access::kElement && rows_out.data && transposed_out.data) {
    // Straight code: a branch in the loop keeps unlike rows from overlapping.
    convert_and_store_layouts<Layouts::kBoth, A>(v, encoder, row_inv_scale, column_inv_scale,
                                                 rows_out, transposed_out, x, tile, at);
  } else {
    convert_and_store_layouts<Layouts::kAny, A>(v, encoder, row_inv_scale, column_inv_scale,
                                                rows_out, transposed_out, x, tile, at);
  }
}

}  // namespace octavo::gpu
