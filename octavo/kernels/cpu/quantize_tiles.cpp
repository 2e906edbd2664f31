#include "octavo/kernels/cpu/quantize_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "octavo/kernels/cpu/quantize_tiles.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which sets the target these see.
#include "octavo/kernels/cpu/cast-inl.h"
#include "octavo/kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace octavo::kernels {
namespace HWY_NAMESPACE {

constexpr std::int64_t kStrips = kTile / 32;  // MX blocks along a tile's side

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
};

template <class T>
struct Scratch {
  alignas(64) typename T::Bits x[kTile * kTile];
  alignas(64) std::uint8_t bytes[kTile * kTile];
  alignas(64) std::uint8_t transposed[kTransposeColumns * kTile];
  // Largest magnitudes of the tile's 1x32 and 32x1 blocks.
  float row_amax[kTile][kStrips];
  float column_amax[kStrips][kTile];
};

// A layout's factors for one tile: per row and 32 columns, or per 32 rows and column (in lane
// order).
struct Factors {
  bool by_column = false;
  bool finite = true;  // every one of them; tells only when by_column
  float by_row[kTile][kStrips];
  alignas(64) float of_column[kStrips][kTile];
  alignas(64) float lane_order[kStrips][kTile];
};

bool BlocksNeedRowAmax(const LayoutTarget* t) {
  return t != nullptr && (t->blocks == Blocks::k1x128 || t->blocks == Blocks::k128x128 ||
                          t->blocks == Blocks::kMx1x32);
}
bool BlocksNeedColumnAmax(const LayoutTarget* t) {
  return t != nullptr && (t->blocks == Blocks::k128x1 || t->blocks == Blocks::kMx32x1);
}

// The tile copied next to itself, with zeros up to the next chunk: power-of-two row strides put all
// rows of a tile into a few cache sets, and it is read up to four times.
template <class T>
void Gather(const ConstMatrix& x, Tile<T>& tile, typename T::Bits* to) {
  const auto* from = static_cast<const typename T::Bits*>(x.data) + tile.row * x.row_stride +
                     tile.column * x.column_stride;
  const std::int64_t padded = RoundUp(tile.columns, kChunk);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    typename T::Bits* row = to + r * kTile;
    if (x.column_stride == 1) {
      std::memcpy(row, from + r * x.row_stride,
                  static_cast<std::size_t>(tile.columns) * sizeof(*row));
    } else {
      for (std::int64_t c = 0; c < tile.columns; ++c) {
        row[c] = from[r * x.row_stride + c * x.column_stride];
      }
    }
    for (std::int64_t c = tile.columns; c < padded; ++c) row[c] = 0;
  }
  tile.x = to;
  tile.stride = kTile;
}

template <class T>
void RowAmax(const Tile<T>& tile, float (*out)[kStrips]) {
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    for (std::int64_t b = 0; b * 32 < tile.columns; ++b) {
      const std::int64_t n = tile.columns - b * 32 < 32 ? tile.columns - b * 32 : 32;
      out[r][b] = value_of(T::kType, AmaxBits<T>(tile.x + r * tile.stride + b * 32, n));
    }
  }
}

template <class T>
void ColumnAmax(const Tile<T>& tile, float (*out)[kTile]) {
  constexpr std::int64_t N = kMagnitudeLanes<T>;
  const hn::RebindToUnsigned<DMagnitude<T>> d;
  for (std::int64_t r0 = 0; r0 < tile.rows; r0 += 32) {
    const std::int64_t r1 = tile.rows - r0 < 32 ? tile.rows : r0 + 32;
    for (std::int64_t c = 0; c < tile.columns; c += N) {
      auto m = hn::Zero(DMagnitude<T>());
      for (std::int64_t r = r0; r < r1; ++r) {
        m = hn::Max(m, LoadMagnitude<T>(tile.x + r * tile.stride + c));
      }
      typename T::Bits bits[N];
      hn::StoreU(hn::BitCast(d, m), d, bits);
      for (std::int64_t i = 0; i < N; ++i) out[r0 / 32][c + i] = value_of(T::kType, bits[i]);
    }
  }
}

template <class T>
void FactorsByRow(const LayoutTarget& t, const Tile<T>& tile, const Scratch<T>& scratch,
                  Factors& out) {
  const std::int64_t blocks = (tile.columns + 31) / 32;
  const std::int64_t at = tile.row * t.scale_row_stride;
  const auto row_amax = [&](std::int64_t r) {
    float amax = 0;
    for (std::int64_t b = 0; b < blocks; ++b) amax = larger_magnitude(amax, scratch.row_amax[r][b]);
    return amax;
  };
  float tile_inv_scale = 0;
  if (t.blocks == Blocks::kWhole) tile_inv_scale = t.inv_scale[0];
  if (t.blocks == Blocks::k128x128) {
    float amax = 0;
    for (std::int64_t r = 0; r < tile.rows; ++r) amax = larger_magnitude(amax, row_amax(r));
    tile_inv_scale = write_block_scale(
        t, amax,
        tile.row / kTile * t.scale_row_stride + tile.column / kTile * t.scale_column_stride);
  }
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    float* row = out.by_row[r];
    if (t.blocks == Blocks::kMx1x32) {
      for (std::int64_t b = 0; b < blocks; ++b) {
        row[b] = write_block_scale(
            t, scratch.row_amax[r][b],
            at + r * t.scale_row_stride + (tile.column / 32 + b) * t.scale_column_stride);
      }
      continue;
    }
    float inv_scale = tile_inv_scale;
    if (t.blocks == Blocks::kRow) inv_scale = t.inv_scale[tile.row + r];
    if (t.blocks == Blocks::k1x128) {
      inv_scale = write_block_scale(
          t, row_amax(r),
          at + r * t.scale_row_stride + tile.column / kTile * t.scale_column_stride);
    }
    for (std::int64_t b = 0; b < kStrips; ++b) row[b] = inv_scale;
  }
}

template <class T>
void FactorsByColumn(const LayoutTarget& t, const Tile<T>& tile, const Scratch<T>& scratch,
                     Factors& out) {
  const std::int64_t strips = (tile.rows + 31) / 32;
  for (std::int64_t c = 0; c < tile.columns; ++c) {
    if (t.blocks == Blocks::kMx32x1) {
      for (std::int64_t s = 0; s < strips; ++s) {
        out.of_column[s][c] = write_block_scale(
            t, scratch.column_amax[s][c],
            (tile.row / 32 + s) * t.scale_row_stride + (tile.column + c) * t.scale_column_stride);
      }
      continue;
    }
    float inv_scale;
    if (t.blocks == Blocks::kColumn) {
      inv_scale = t.inv_scale[tile.column + c];
    } else {
      float amax = 0;
      for (std::int64_t s = 0; s < strips; ++s) {
        amax = larger_magnitude(amax, scratch.column_amax[s][c]);
      }
      inv_scale = write_block_scale(
          t, amax,
          tile.row / kTile * t.scale_row_stride + (tile.column + c) * t.scale_column_stride);
    }
    for (std::int64_t s = 0; s < strips; ++s) out.of_column[s][c] = inv_scale;
  }
  const std::int64_t padded = RoundUp(tile.columns, kChunk);
  out.finite = true;
  for (std::int64_t s = 0; s < strips; ++s) {
    for (std::int64_t c = 0; c < tile.columns; ++c) {
      out.finite &= is_finite_block(out.of_column[s][c]);
    }
    for (std::int64_t c = tile.columns; c < padded; ++c) out.of_column[s][c] = 1.0f;
    LaneOrder<T>(out.of_column[s], padded, out.lane_order[s]);
  }
}

template <class T>
void FactorsOf(const LayoutTarget& t, const Tile<T>& tile, const Scratch<T>& scratch,
               Factors& out) {
  out.by_column = t.blocks == Blocks::kColumn || BlocksNeedColumnAmax(&t);
  if (out.by_column) {
    FactorsByColumn(t, tile, scratch, out);
  } else {
    FactorsByRow(t, tile, scratch, out);
  }
}

// One row of the tile, padded to the next chunk.
template <class T, int kMantissa>
HWY_INLINE void CastTileRow(const Encoder<kMantissa>& encoder, const Tile<T>& tile, std::int64_t r,
                            const LayoutTarget& t, const Factors& factors, std::uint8_t* out) {
  const typename T::Bits* x = tile.x + r * tile.stride;
  const std::int64_t padded = RoundUp(tile.columns, kChunk);
  if (!factors.by_column) {
    if (t.blocks == Blocks::kMx1x32) {
      CastMxRow<T>(encoder, x, tile.columns, factors.by_row[r], t.format, out);
    } else {
      CastUniform<T>(encoder, x, padded, factors.by_row[r][0], t.format, out);
    }
  } else if (factors.finite) {
    CastByColumn<T>(encoder, x, padded, factors.lane_order[r / 32], out);
  } else {
    for (std::int64_t c = 0; c < tile.columns; ++c) {
      out[c] = quantize_element(value_of(T::kType, x[c]), factors.of_column[r / 32][c], t.format);
    }
  }
}

template <class T, int kMantissa>
void CastTile(const Tile<T>& tile, const LayoutTarget& t, const Factors& factors, std::uint8_t* out,
              std::int64_t stride) {
  const Encoder<kMantissa> encoder(t.format);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    CastTileRow<T>(encoder, tile, r, t, factors, out + r * stride);
  }
}

template <class T>
void CastTile(const Tile<T>& tile, const LayoutTarget& t, const Factors& factors, std::uint8_t* out,
              std::int64_t stride) {
  if (limits(t.format).mantissa_bits == 3) return CastTile<T, 3>(tile, t, factors, out, stride);
  CastTile<T, 2>(tile, t, factors, out, stride);
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
void QuantizeTile(const ConstMatrix& x, Tile<T> tile, const LayoutTarget* rows,
                  const LayoutTarget* transposed, Scratch<T>& scratch, Factors& factors) {
  const bool row_amax = BlocksNeedRowAmax(rows) || BlocksNeedRowAmax(transposed);
  const bool column_amax = BlocksNeedColumnAmax(rows) || BlocksNeedColumnAmax(transposed);
  const bool whole_chunks = tile.columns % kChunk == 0;
  if (row_amax || column_amax || x.column_stride != 1 || !whole_chunks) {
    Gather<T>(x, tile, scratch.x);
  }
  if (row_amax) RowAmax(tile, scratch.row_amax);
  if (column_amax) ColumnAmax(tile, scratch.column_amax);

  bool cast = false;  // whether scratch.bytes holds the transposed layout's bytes
  if (rows != nullptr) {
    FactorsOf(*rows, tile, scratch, factors);
    std::uint8_t* out = rows->data + tile.row * rows->stride + tile.column;
    cast = transposed != nullptr && SameBytes(*rows, *transposed);
    if (cast || !whole_chunks) {
      CastTile<T>(tile, *rows, factors, scratch.bytes, kTile);
      for (std::int64_t r = 0; r < tile.rows; ++r) {
        std::memcpy(out + r * rows->stride, scratch.bytes + r * kTile,
                    static_cast<std::size_t>(tile.columns));
      }
    } else {
      CastTile<T>(tile, *rows, factors, out, rows->stride);
    }
  }
  if (transposed != nullptr) {
    // Also when `cast`: it writes the transposed layout's own copy of the scales.
    FactorsOf(*transposed, tile, scratch, factors);
    if (!cast) CastTile<T>(tile, *transposed, factors, scratch.bytes, kTile);
    StoreTransposed(scratch.bytes, tile, *transposed, scratch.transposed);
  }
}

template <class T>
void QuantizeTilesT(const ConstMatrix& x, std::int64_t begin, std::int64_t end,
                    const LayoutTarget* rows, const LayoutTarget* transposed) {
  Scratch<T> scratch;
  // Rows past a tile's end are transposed with it and dropped; they must only not be undefined.
  std::memset(scratch.bytes, 0, sizeof(scratch.bytes));
  Factors factors;
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
    QuantizeTile<T>(x, tile, rows, transposed, scratch, factors);
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
