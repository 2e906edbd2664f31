#include "octavo/kernels/cpu/amax.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "octavo/kernels/cpu/amax.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h, which sets the target these see.
#include "octavo/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace octavo::kernels {
namespace HWY_NAMESPACE {

// column_bits[0..lanes) = max(column_bits, m).
HWY_INLINE void MaxInto(std::uint32_t* column_bits, hn::Vec<DI> m) {
  const DU d;
  hn::StoreU(hn::BitCast(d, hn::Max(hn::BitCast(DI(), hn::LoadU(d, column_bits)), m)), d,
             column_bits);
}
HWY_INLINE void MaxInto(std::uint32_t* column_bits, V16 m) {
  const hn::Half<DS16> half;
  MaxInto(column_bits, hn::PromoteTo(DI(), hn::LowerHalf(half, m)));
  MaxInto(column_bits + kLanes, hn::PromoteTo(DI(), hn::UpperHalf(half, m)));
}

// kRows rows together, so that a column's running maximum is loaded and stored once for all.
template <class T, int kRows>
std::uint32_t AmaxOfRows(const typename T::Bits* x, std::int64_t row_stride, std::int64_t columns,
                         float* row_amax, std::uint32_t* column_bits) {
  constexpr std::int64_t N = kMagnitudeLanes<T>;
  VMagnitude<T> rows[kRows];
  OCTAVO_UNROLL
  for (int r = 0; r < kRows; ++r) rows[r] = hn::Zero(DMagnitude<T>());
  std::int64_t c = 0;
  for (; c + N <= columns; c += N) {
    VMagnitude<T> column = hn::Zero(DMagnitude<T>());
    OCTAVO_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto m = LoadMagnitude<T>(x + r * row_stride + c);
      rows[r] = hn::Max(rows[r], m);
      column = hn::Max(column, m);
    }
    if (column_bits != nullptr) MaxInto(column_bits + c, column);
  }
  std::uint32_t largest = 0;
  OCTAVO_UNROLL
  for (int r = 0; r < kRows; ++r) {
    std::uint32_t row = ReduceMax(rows[r]);
    for (std::int64_t tail = c; tail < columns; ++tail) {
      const std::uint32_t bits = x[r * row_stride + tail] & kMagnitudeMask<T>;
      row = bits > row ? bits : row;
      if (column_bits != nullptr && bits > column_bits[tail]) column_bits[tail] = bits;
    }
    if (row_amax != nullptr) row_amax[r] = value_of(T::kType, row);
    largest = row > largest ? row : largest;
  }
  return largest;
}

template <class T>
float AmaxT(const ConstMatrix& x, std::int64_t begin, std::int64_t end, float* row_amax,
            std::uint32_t* column_bits) {
  const auto* data = static_cast<const typename T::Bits*>(x.data);
  std::uint32_t largest = 0;
  const auto take = [&](std::uint32_t bits) { largest = bits > largest ? bits : largest; };
  std::int64_t r = begin;
  const auto out = [&] { return row_amax == nullptr ? nullptr : row_amax + r; };
  if (column_bits != nullptr) {
    for (; r + 4 <= end; r += 4) {
      take(AmaxOfRows<T, 4>(data + r * x.row_stride, x.row_stride, x.columns, out(), column_bits));
    }
    for (; r < end; ++r) {
      take(AmaxOfRows<T, 1>(data + r * x.row_stride, x.row_stride, x.columns, out(), column_bits));
    }
  }
  for (; r < end; ++r) {
    const std::uint32_t row = AmaxBits<T>(data + r * x.row_stride, x.columns);
    if (row_amax != nullptr) row_amax[r] = value_of(T::kType, row);
    take(row);
  }
  return value_of(T::kType, largest);
}

float Amax(const ConstMatrix& x, std::int64_t begin, std::int64_t end, float* row_amax,
           std::uint32_t* column_bits) {
  switch (x.type) {
    case HighPrecision::kFloat32:
      return AmaxT<Float32>(x, begin, end, row_amax, column_bits);
    case HighPrecision::kBFloat16:
      return AmaxT<BFloat16>(x, begin, end, row_amax, column_bits);
    default:
      return AmaxT<Float16>(x, begin, end, row_amax, column_bits);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace octavo::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace octavo::kernels {
HWY_EXPORT(Amax);

float amax(const ConstMatrix& x, std::int64_t begin, std::int64_t end, float* row_amax,
           std::uint32_t* column_bits) {
  return HWY_DYNAMIC_DISPATCH(Amax)(x, begin, end, row_amax, column_bits);
}
}  // namespace octavo::kernels
#endif
