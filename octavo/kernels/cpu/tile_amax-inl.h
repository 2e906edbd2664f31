// A tile of x copied into a buffer of its own, and the largest magnitudes of its 1x32 and 32x1
// blocks found on the way. Compiled once per target, as simd-inl.h.
#if defined(OCTAVO_KERNELS_CPU_TILE_AMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OCTAVO_KERNELS_CPU_TILE_AMAX_INL_H_
#undef OCTAVO_KERNELS_CPU_TILE_AMAX_INL_H_
#else
#define OCTAVO_KERNELS_CPU_TILE_AMAX_INL_H_
#endif

#include <hwy/cache_control.h>

#include <cstring>

#include "octavo/kernels/cpu/quantize_tiles.h"
#include "octavo/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace octavo::kernels {
namespace HWY_NAMESPACE {

/// 32-wide strips along a tile's side.
inline constexpr std::int64_t kStrips = kTile / 32;

/// amax of the blocks of one tile. by_row[b][r]: row r, columns 32 b to 32 b + 31. by_column[s][c]:
/// rows 32 s to 32 s + 31, column c. Entries past the tile's edge are 0 up to the next multiple of
/// 16 blocks, then undefined.
struct TileAmax {
  alignas(64) float by_row[kStrips][kTile];
  alignas(64) float by_column[kStrips][kTile];
};

/// Asks for kTile elements from p on.
template <class Element>
HWY_INLINE void PrefetchRow(const Element* p) {
  constexpr std::int64_t kPerLine = 64 / static_cast<std::int64_t>(sizeof(Element));
  OCTAVO_UNROLL
  for (std::int64_t i = 0; i < kTile; i += kPerLine) hwy::Prefetch(p + i);
}

/// Lanes of 32 bits whose order is that of the magnitudes in m, one for every 4 bytes of m;
/// shifting right by Shift<T>() gives a magnitude's bits.
HWY_INLINE VI Widest(VI m) { return m; }
HWY_INLINE VI Widest(V16 m) {
  const DI d;
  const V16 zero = hn::Zero(DS16());
  return hn::Max(hn::BitCast(d, hn::InterleaveLower(DS16(), zero, m)),
                 hn::BitCast(d, hn::InterleaveUpper(DS16(), zero, m)));
}

/// fp32 values from lanes as Widest() leaves them, in place; n is rounded up to whole vectors.
template <class T>
HWY_INLINE void ToFloat32(float* magnitudes, std::int64_t n) {
  if constexpr (T::kType == HighPrecision::kFloat16) {
    const DI d;
    const DF f;
    for (std::int64_t i = 0; i < n; i += kLanes) {
      const VI bits = hn::ShiftRight<16>(hn::BitCast(d, hn::LoadU(f, magnitudes + i)));
      const VI subnormal = hn::BitCast(
          d, hn::Mul(hn::ConvertTo(f, bits), hn::Set(f, internal::float_of(103u << 23))));
      const auto infinite = hn::Gt(bits, hn::Set(d, 0x7BFF));
      const VI bias = hn::IfThenElse(infinite, hn::Set(d, 224 << 23), hn::Set(d, 112 << 23));
      const VI normal = hn::Add(hn::ShiftLeft<13>(bits), bias);
      const VI value = hn::IfThenElse(hn::Lt(bits, hn::Set(d, 0x400)), subnormal, normal);
      hn::StoreU(hn::BitCast(f, value), f, magnitudes + i);
    }
  }
}

template <class V>
HWY_INLINE V MaxOfPairs32(V a, V b) {
  const hn::DFromV<V> d;
  return hn::Max(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
}

/// The largest of the 128-bit blocks' lanes at each of their four places.
template <class V>
HWY_INLINE auto MaxOfBlocks(V v) {
  using D = hn::DFromV<V>;
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return MaxOfBlocks(hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

/// out[i] = the largest lane of vi: the lanes of four vectors side by side, then halved twice.
HWY_INLINE void MaxOfEach(VI v0, VI v1, VI v2, VI v3, float* out) {
  const hn::RepartitionToWide<DI> wide;
  const VI a = MaxOfPairs32(v0, v1), b = MaxOfPairs32(v2, v3);
  const auto a64 = hn::BitCast(wide, a), b64 = hn::BitCast(wide, b);
  const VI per_block = hn::Max(hn::BitCast(DI(), hn::InterleaveLower(wide, a64, b64)),
                               hn::BitCast(DI(), hn::InterleaveUpper(wide, a64, b64)));
  const hn::Full128<std::int32_t> d;
  hn::StoreU(MaxOfBlocks(per_block), d, reinterpret_cast<std::int32_t*>(out));
}

/// Copies a tile of contiguous rows, `rows` of them and `columns` a multiple of 32, from x to `to`
/// (stride kTile; x may be `to`) and finds amax.by_row and, if kColumns, amax.by_column. `to` has
/// kTile rows: those past the tile up to the next multiple of 4 become zeros. prefetch: asks for
/// the tile to the right.
template <class T, bool kColumns>
HWY_INLINE void LoadTile(const typename T::Bits* x, std::int64_t stride, std::int64_t rows,
                         std::int64_t columns, bool prefetch, typename T::Bits* to,
                         TileAmax& amax) {
  constexpr std::int64_t N = kMagnitudeLanes<T>;
  constexpr std::int64_t kVectors = N < 32 ? 32 / N : 1;  // of a block of 32 columns
  using D = DMagnitude<T>;
  const D d;
  const hn::RebindToUnsigned<D> bits;
  const auto mask = hn::Set(bits, static_cast<typename T::Bits>(kMagnitudeMask<T>));
  alignas(64) hn::TFromD<D> column[kTile];
  for (std::int64_t r0 = 0; r0 < rows; r0 += 4) {
    if (kColumns && r0 % 32 == 0) std::memset(column, 0, sizeof(column));
    const typename T::Bits* from[4];
    OCTAVO_UNROLL
    for (std::int64_t i = 0; i < 4; ++i) {
      from[i] = x + (r0 + i) * stride;
      if (r0 + i >= rows) {
        std::memset(to + (r0 + i) * kTile, 0, kTile * sizeof(*to));
        from[i] = to + (r0 + i) * kTile;
      } else if (prefetch) {
        PrefetchRow(from[i] + kTile);
      }
    }
    for (std::int64_t c = 0; c < columns; c += 32) {
      VMagnitude<T> row[4];
      OCTAVO_UNROLL
      for (std::int64_t v = 0; v < kVectors; ++v) {
        const std::int64_t at = c + v * N;
        VMagnitude<T> of_column = kColumns ? hn::Load(d, column + at) : hn::Zero(d);
        OCTAVO_UNROLL
        for (std::int64_t i = 0; i < 4; ++i) {
          const auto loaded = hn::LoadU(bits, from[i] + at);
          hn::StoreU(loaded, bits, to + (r0 + i) * kTile + at);
          const VMagnitude<T> m = hn::BitCast(d, hn::And(loaded, mask));
          row[i] = v == 0 ? m : hn::Max(row[i], m);
          if (kColumns) of_column = hn::Max(of_column, m);
        }
        if (kColumns) hn::Store(of_column, d, column + at);
      }
      MaxOfEach(Widest(row[0]), Widest(row[1]), Widest(row[2]), Widest(row[3]),
                amax.by_row[c / 32] + r0);
    }
    if (kColumns && (r0 % 32 == 28 || r0 + 4 >= rows)) {
      float* out = amax.by_column[r0 / 32];
      for (std::int64_t c = 0; c < columns; ++c) {
        out[c] = internal::float_of(static_cast<std::uint32_t>(column[c])
                                    << (sizeof(column[c]) == 2 ? 16 : 0));
      }
      ToFloat32<T>(out, columns);
    }
  }
  for (std::int64_t b = 0; b * 32 < columns; ++b) ToFloat32<T>(amax.by_row[b], rows);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace octavo::kernels
HWY_AFTER_NAMESPACE();

#endif
