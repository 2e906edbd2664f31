#include "octavo/kernels/cpu/quantize_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "octavo/kernels/cpu/quantize_tiles.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which sets the target these see.
#include "octavo/kernels/cpu/block_scale-inl.h"
#include "octavo/kernels/cpu/cast-inl.h"
#include "octavo/kernels/cpu/tile_amax-inl.h"
#include "octavo/kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace octavo::kernels {
namespace HWY_NAMESPACE {

constexpr std::int64_t RoundUp(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// One tile of x: `rows` x `columns` elements at x, readable up to the next chunk.
template <class T>
struct Tile {
  const typename T::Bits* x;
  std::int64_t stride;
  std::int64_t row, column;  // of its first element in the whole matrix
  std::int64_t rows, columns;
  bool right;  // whether a whole tile to the right of it is next
};

template <class T>
struct Scratch {
  alignas(64) typename T::Bits x[kTile * kTile];
  alignas(64) std::uint8_t bytes[kTile * kTile];
  alignas(64) std::uint8_t transposed[kTransposeColumns * kTile];
  TileAmax amax;
};

// A layout's inv_scales for one tile.
struct InvScales {
  enum class Along : std::uint8_t {
    kRow,       // [0][r]: one for the columns of row r
    kMxRow,     // [b][r]: row r, columns 32 b to 32 b + 31
    kColumn,    // [0][c]: one for the rows of column c
    kMxColumn,  // [s][c]: rows 32 s to 32 s + 31, column c
  } along;
  bool finite;  // all of them; known only along columns
  alignas(64) float at[kStrips][kTile];
  alignas(64) float lane_order[kStrips][kTile];  // along columns: for CastByColumn()
};

bool BlocksNeedAmax(const LayoutTarget* t) { return t != nullptr && t->inv_scale == nullptr; }
bool BlocksNeedColumnAmax(const LayoutTarget* t) {
  return t != nullptr && (t->blocks == Blocks::k128x1 || t->blocks == Blocks::kMx32x1);
}

// The tile element by element into a buffer, with zeros up to the next 64 columns: for strided
// columns, and where a whole chunk would reach past the matrix.
template <class T>
void Gather(const ConstMatrix& x, const Tile<T>& tile, typename T::Bits* to) {
  const std::int64_t padded = RoundUp(tile.columns, 64);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const typename T::Bits* from = tile.x + r * x.row_stride;
    typename T::Bits* row = to + r * kTile;
    if (x.column_stride == 1) {
      std::memcpy(row, from, static_cast<std::size_t>(tile.columns) * sizeof(*row));
    } else {
      for (std::int64_t c = 0; c < tile.columns; ++c) row[c] = from[c * x.column_stride];
    }
    for (std::int64_t c = tile.columns; c < padded; ++c) row[c] = 0;
  }
}

// to[i] = the larger of the strips' magnitudes at i, n rounded up to whole vectors.
void JoinStrips(const float (*strips)[kTile], std::int64_t count, std::int64_t n, float* to) {
  const DI d;
  const DF f;
  for (std::int64_t i = 0; i < n; i += kLanes) {
    VI m = hn::BitCast(d, hn::Load(f, strips[0] + i));
    for (std::int64_t s = 1; s < count; ++s) {
      m = hn::Max(m, hn::BitCast(d, hn::Load(f, strips[s] + i)));
    }
    hn::StoreU(hn::BitCast(f, m), f, to + i);
  }
}

template <class T>
void InvScalesAlongRows(const LayoutTarget& t, const Tile<T>& tile, const TileAmax& amax,
                        InvScales& out) {
  const std::int64_t blocks = (tile.columns + 31) / 32;
  const std::int64_t across = tile.column / kTile * t.scale_column_stride;
  out.along = InvScales::Along::kRow;
  float joined[kTile];
  switch (t.blocks) {
    case Blocks::kMx1x32:
      out.along = InvScales::Along::kMxRow;
      for (std::int64_t b = 0; b < blocks; ++b) {
        BlockScales(t, amax.by_row[b], tile.rows, out.at[b],
                    tile.row * t.scale_row_stride + (tile.column / 32 + b) * t.scale_column_stride,
                    t.scale_row_stride);
      }
      return;
    case Blocks::k1x128:
      JoinStrips(amax.by_row, blocks, tile.rows, joined);
      BlockScales(t, joined, tile.rows, out.at[0], tile.row * t.scale_row_stride + across,
                  t.scale_row_stride);
      return;
    case Blocks::kRow:
      std::memcpy(out.at[0], t.inv_scale + tile.row,
                  static_cast<std::size_t>(tile.rows) * sizeof(float));
      return;
    default:
      break;
  }
  float inv_scale;
  if (t.blocks == Blocks::k128x128) {
    JoinStrips(amax.by_row, blocks, tile.rows, joined);
    float largest = 0;
    for (std::int64_t r = 0; r < tile.rows; ++r) largest = larger_magnitude(largest, joined[r]);
    inv_scale = write_block_scale(t, largest, tile.row / kTile * t.scale_row_stride + across);
  } else {
    inv_scale = t.inv_scale[0];
  }
  for (std::int64_t r = 0; r < tile.rows; ++r) out.at[0][r] = inv_scale;
}

template <class T>
void InvScalesAlongColumns(const LayoutTarget& t, const Tile<T>& tile, const TileAmax& amax,
                           InvScales& out) {
  const std::int64_t strips = (tile.rows + 31) / 32;
  const std::int64_t down = tile.column * t.scale_column_stride;
  out.along = InvScales::Along::kColumn;
  if (t.blocks == Blocks::kMx32x1) {
    out.along = InvScales::Along::kMxColumn;
    for (std::int64_t s = 0; s < strips; ++s) {
      BlockScales(t, amax.by_column[s], tile.columns, out.at[s],
                  (tile.row / 32 + s) * t.scale_row_stride + down, t.scale_column_stride);
    }
  } else if (t.blocks == Blocks::k128x1) {
    float joined[kTile];
    JoinStrips(amax.by_column, strips, tile.columns, joined);
    BlockScales(t, joined, tile.columns, out.at[0], tile.row / kTile * t.scale_row_stride + down,
                t.scale_column_stride);
  } else {
    std::memcpy(out.at[0], t.inv_scale + tile.column,
                static_cast<std::size_t>(tile.columns) * sizeof(float));
  }
  const std::int64_t padded = RoundUp(tile.columns, kChunk);
  out.finite = true;
  for (std::int64_t s = 0; s < (out.along == InvScales::Along::kMxColumn ? strips : 1); ++s) {
    out.finite &= AllFinite(out.at[s], tile.columns);
    for (std::int64_t c = tile.columns; c < padded; ++c) out.at[s][c] = 1.0f;
    LaneOrder<T>(out.at[s], padded, out.lane_order[s]);
  }
}

template <class T>
void InvScalesOf(const LayoutTarget& t, const Tile<T>& tile, const TileAmax& amax, InvScales& out) {
  if (t.blocks == Blocks::kColumn || BlocksNeedColumnAmax(&t)) {
    InvScalesAlongColumns(t, tile, amax, out);
  } else {
    InvScalesAlongRows(t, tile, amax, out);
  }
}

// Row r of the tile, padded to the next chunk.
template <class T, int kMantissa>
HWY_INLINE void CastTileRow(const Encoder<kMantissa>& encoder, const Tile<T>& tile, std::int64_t r,
                            std::int64_t padded, Format format, const InvScales& inv_scales,
                            std::uint8_t* out) {
  const typename T::Bits* x = tile.x + r * tile.stride;
  switch (inv_scales.along) {
    case InvScales::Along::kRow:
      CastUniform<T>(encoder, x, padded, inv_scales.at[0][r], format, out);
      return;
    case InvScales::Along::kMxRow: {
      const float of_row[kStrips] = {inv_scales.at[0][r], inv_scales.at[1][r], inv_scales.at[2][r],
                                     inv_scales.at[3][r]};
      CastMxRow<T>(encoder, x, tile.columns, of_row, format, out);
      return;
    }
    default:
      break;
  }
  const std::int64_t strip = inv_scales.along == InvScales::Along::kMxColumn ? r / 32 : 0;
  if (HWY_LIKELY(inv_scales.finite)) {
    CastByColumn<T>(encoder, x, padded, inv_scales.lane_order[strip], out);
    return;
  }
  for (std::int64_t c = 0; c < tile.columns; ++c) {
    out[c] = quantize_element(value_of(T::kType, x[c]), inv_scales.at[strip][c], format);
  }
}

// A layout of the tile on its way to `out`.
struct Cast {
  const InvScales* inv_scales;
  std::uint8_t* out;
  std::int64_t stride;
};

// What will be needed soon and no hardware prefetcher foresees, as a tile's rows are short runs far
// apart: stores that miss would otherwise wait one after the other (a third of the time where the
// operand is larger than the caches).
struct Soon {
  bool right = false;                        // this row of the tile to the right: x, and...
  bool right_out = false;                    // ...the first cast's bytes
  const LayoutTarget* transposed = nullptr;  // this tile's lines there
};

template <class T>
HWY_INLINE void PrefetchSoon(const Soon& soon, const Tile<T>& tile, std::int64_t r,
                             const Cast& first) {
  if (soon.right) PrefetchRow(tile.x + r * tile.stride + kTile);
  if (soon.right_out) PrefetchRow(first.out + r * first.stride + kTile);
  if (soon.transposed != nullptr && r < tile.columns) {
    PrefetchRow(soon.transposed->data + (tile.column + r) * soon.transposed->stride + tile.row);
  }
}

// One or two layouts of one format, row by row: x is still in cache for the second.
template <class T, int kMantissa>
void CastTile(const Tile<T>& tile, Format format, const Soon& soon, const Cast& first,
              const Cast* second) {
  const Encoder<kMantissa> encoder(format);
  const std::int64_t padded = RoundUp(tile.columns, kChunk);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    PrefetchSoon(soon, tile, r, first);
    CastTileRow<T>(encoder, tile, r, padded, format, *first.inv_scales,
                   first.out + r * first.stride);
    if (second != nullptr) {
      CastTileRow<T>(encoder, tile, r, padded, format, *second->inv_scales,
                     second->out + r * second->stride);
    }
  }
}

template <class T>
void CastTile(const Tile<T>& tile, Format format, const Soon& soon, const Cast& first,
              const Cast* second) {
  if (limits(format).mantissa_bits == 3) return CastTile<T, 3>(tile, format, soon, first, second);
  CastTile<T, 2>(tile, format, soon, first, second);
}

// The tile's bytes (stride kTile) to columns of the transposed layout, whole runs of a row's bytes
// at a time: writing 16 bytes here and there would keep too many half-written lines.
template <class T>
void StoreTransposed(const std::uint8_t* bytes, const Tile<T>& tile, const LayoutTarget& t,
                     std::uint8_t* buffer) {
  const std::int64_t rows = RoundUp(tile.rows, 16);
  for (std::int64_t c = 0; c < tile.columns; c += kTransposeColumns) {
    for (std::int64_t r = 0; r < rows; r += 16) {
      Transpose16Rows(bytes + r * kTile + c, kTile, buffer + r, kTile);
    }
    const std::int64_t n =
        tile.columns - c < kTransposeColumns ? tile.columns - c : kTransposeColumns;
    for (std::int64_t i = 0; i < n; ++i) {
      std::uint8_t* to = t.data + (tile.column + c + i) * t.stride + tile.row;
      if (tile.rows == kTile) {
        std::memcpy(to, buffer + i * kTile, kTile);
      } else {
        std::memcpy(to, buffer + i * kTile, static_cast<std::size_t>(tile.rows));
      }
    }
  }
}

// Equal blocks, format and rounding: the transposed bytes are the rows' bytes.
bool SameBytes(const LayoutTarget& a, const LayoutTarget& b) {
  return a.blocks == b.blocks && a.format == b.format && a.scale_rounding == b.scale_rounding &&
         a.mx_rounding == b.mx_rounding;
}

template <class T>
struct Work {
  Scratch<T> scratch;
  InvScales rows, transposed;
};

// The tile as the casts want it, in scratch.x unless they can read it where it is.
template <class T>
void PrepareTile(const ConstMatrix& x, const LayoutTarget* rows, const LayoutTarget* transposed,
                 Tile<T>& tile, Scratch<T>& scratch) {
  // A multiple of every chunk and of the blocks of 32 that amax is found in.
  const std::int64_t padded = RoundUp(tile.columns, 64);
  if (x.column_stride != 1 || tile.columns != padded) {
    Gather<T>(x, tile, scratch.x);
    tile.x = scratch.x;
    tile.stride = kTile;
  }
  if (!BlocksNeedAmax(rows) && !BlocksNeedAmax(transposed)) return;
  // Copied too, because power-of-two row strides put all rows of a tile into a few cache sets.
  const bool prefetch = tile.right && tile.x != scratch.x;
  if (BlocksNeedColumnAmax(rows) || BlocksNeedColumnAmax(transposed)) {
    LoadTile<T, true>(tile.x, tile.stride, tile.rows, padded, prefetch, scratch.x, scratch.amax);
  } else {
    LoadTile<T, false>(tile.x, tile.stride, tile.rows, padded, prefetch, scratch.x, scratch.amax);
  }
  tile.x = scratch.x;
  tile.stride = kTile;
}

template <class T>
void QuantizeTile(const ConstMatrix& x, Tile<T> tile, const LayoutTarget* rows,
                  const LayoutTarget* transposed, Work<T>& work) {
  Scratch<T>& scratch = work.scratch;
  PrepareTile(x, rows, transposed, tile, scratch);
  if (rows != nullptr) InvScalesOf(*rows, tile, scratch.amax, work.rows);
  if (transposed != nullptr) InvScalesOf(*transposed, tile, scratch.amax, work.transposed);

  Soon soon;
  soon.right = tile.right && tile.x != scratch.x;
  if (tile.rows == kTile) soon.transposed = transposed;
  const Cast to_transposed{&work.transposed, scratch.bytes, kTile};
  if (rows == nullptr) {
    CastTile(tile, transposed->format, soon, to_transposed, nullptr);
  } else {
    std::uint8_t* out = rows->data + tile.row * rows->stride + tile.column;
    const bool same_bytes = transposed != nullptr && SameBytes(*rows, *transposed);
    // Rows leave by way of scratch.bytes where the transposition reads them, and where whole chunks
    // would write past them.
    const bool direct = !same_bytes && tile.columns % kChunk == 0;
    const Cast to_rows =
        direct ? Cast{&work.rows, out, rows->stride} : Cast{&work.rows, scratch.bytes, kTile};
    const bool second = transposed != nullptr && !same_bytes;
    const bool together = second && direct && rows->format == transposed->format;
    soon.right_out = direct && tile.right;
    CastTile(tile, rows->format, soon, to_rows, together ? &to_transposed : nullptr);
    for (std::int64_t r = 0; !direct && r < tile.rows; ++r) {
      std::memcpy(out + r * rows->stride, scratch.bytes + r * kTile,
                  static_cast<std::size_t>(tile.columns));
    }
    if (second && !together) {
      CastTile(tile, transposed->format, Soon(), to_transposed, nullptr);
    }
  }
  if (transposed != nullptr) {
    StoreTransposed(scratch.bytes, tile, *transposed, scratch.transposed);
  }
}

template <class T>
void QuantizeTilesT(const ConstMatrix& x, std::int64_t begin, std::int64_t end,
                    const LayoutTarget* rows, const LayoutTarget* transposed) {
  Work<T> work;
  // Rows past a tile's end are transposed with it and dropped; they must only not be undefined.
  std::memset(work.scratch.bytes, 0, sizeof(work.scratch.bytes));
  const std::int64_t across = (x.columns + kTile - 1) / kTile;
  for (std::int64_t t = begin; t < end; ++t) {
    Tile<T> tile;
    tile.row = t / across * kTile;
    tile.column = t % across * kTile;
    tile.rows = x.rows - tile.row < kTile ? x.rows - tile.row : kTile;
    tile.columns = x.columns - tile.column < kTile ? x.columns - tile.column : kTile;
    tile.x = static_cast<const typename T::Bits*>(x.data) + tile.row * x.row_stride +
             tile.column * x.column_stride;
    tile.stride = x.row_stride;
    tile.right = x.column_stride == 1 && t + 1 < end && tile.column + 2 * kTile <= x.columns;
    QuantizeTile<T>(x, tile, rows, transposed, work);
  }
}

void QuantizeTiles(const ConstMatrix& x, std::int64_t begin, std::int64_t end,
                   const LayoutTarget* rows, const LayoutTarget* transposed) {
  switch (x.type) {
    case HighPrecision::kFloat32:
      return QuantizeTilesT<Float32>(x, begin, end, rows, transposed);
    case HighPrecision::kBFloat16:
      return QuantizeTilesT<BFloat16>(x, begin, end, rows, transposed);
    case HighPrecision::kFloat16:
      return QuantizeTilesT<Float16>(x, begin, end, rows, transposed);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace octavo::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace octavo::kernels {
HWY_EXPORT(QuantizeTiles);

void quantize_tiles(const ConstMatrix& x, std::int64_t begin, std::int64_t end,
                    const LayoutTarget* rows, const LayoutTarget* transposed) {
  HWY_DYNAMIC_DISPATCH(QuantizeTiles)(x, begin, end, rows, transposed);
}
}  // namespace octavo::kernels
#endif
