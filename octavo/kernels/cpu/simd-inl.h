// Vectors of an operand's elements: loading them as fp32, their magnitudes, and fp32 to FP8.
// Compiled once per target: no include guard but Highway's toggle. Included by the kernels of this
// folder, after foreach_target.h.
#if defined(OCTAVO_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OCTAVO_KERNELS_CPU_SIMD_INL_H_
#undef OCTAVO_KERNELS_CPU_SIMD_INL_H_
#else
#define OCTAVO_KERNELS_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

/// Before a loop over vectors in an array: unrolled, so that the array becomes registers. -O2 alone
/// leaves it in memory, at a third of the speed.
#ifndef OCTAVO_UNROLL
#define OCTAVO_UNROLL _Pragma("GCC unroll 16")
#endif

#include "octavo/kernels/matrix.h"

HWY_BEFORE_NAMESPACE();
namespace octavo::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using D16 = hn::Repartition<std::uint16_t, DF>;
using DS16 = hn::Repartition<std::int16_t, DF>;
using D8 = hn::Repartition<std::uint8_t, DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using V16 = hn::Vec<DS16>;
using V8 = hn::Vec<D8>;

/// Elements that become one vector of bytes: 16, 32 or 64.
inline constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(DF()));
inline constexpr std::int64_t kChunk = 4 * kLanes;
static_assert(kChunk == static_cast<std::int64_t>(HWY_MAX_BYTES), "fixed-size vectors only");

/// Four vectors of fp32. The lanes are in memory order, except for bf16, where the two pairs are
/// interleaved per 128-bit block, as widening leaves them and packing wants them.
struct Chunk {
  VF v0, v1, v2, v3;
};

/// Element types. Bits: the integer that holds one element. Load reads kChunk elements.
struct Float32 {
  using Bits = std::uint32_t;
  static constexpr HighPrecision kType = HighPrecision::kFloat32;
  static constexpr bool kInterleaved = false;
  static HWY_INLINE Chunk Load(const Bits* p) {
    const DU d;
    const DF f;
    return {hn::BitCast(f, hn::LoadU(d, p)), hn::BitCast(f, hn::LoadU(d, p + kLanes)),
            hn::BitCast(f, hn::LoadU(d, p + 2 * kLanes)),
            hn::BitCast(f, hn::LoadU(d, p + 3 * kLanes))};
  }
};

struct BFloat16 {
  using Bits = std::uint16_t;
  static constexpr HighPrecision kType = HighPrecision::kBFloat16;
  static constexpr bool kInterleaved = true;
  static HWY_INLINE Chunk Load(const Bits* p) {
    const D16 d;
    const DF f;
    const auto zero = hn::Zero(d);
    const auto a = hn::LoadU(d, p), b = hn::LoadU(d, p + 2 * kLanes);
    return {hn::BitCast(f, hn::InterleaveLower(d, zero, a)),
            hn::BitCast(f, hn::InterleaveUpper(d, zero, a)),
            hn::BitCast(f, hn::InterleaveLower(d, zero, b)),
            hn::BitCast(f, hn::InterleaveUpper(d, zero, b))};
  }
};

/// Finite values only: below AVX2 Highway's widening has no infinities and NaNs.
struct Float16 {
  using Bits = std::uint16_t;
  static constexpr HighPrecision kType = HighPrecision::kFloat16;
  static constexpr bool kInterleaved = false;
  static HWY_INLINE VF LoadOne(const Bits* p) {
    const hn::Rebind<std::uint16_t, DF> d;
    const hn::Rebind<hwy::float16_t, DF> h;
    return hn::PromoteTo(DF(), hn::BitCast(h, hn::LoadU(d, p)));
  }
  static HWY_INLINE Chunk Load(const Bits* p) {
    return {LoadOne(p), LoadOne(p + kLanes), LoadOne(p + 2 * kLanes), LoadOne(p + 3 * kLanes)};
  }
};

// ------------------------------ Magnitudes
// The bits of |x| order like the values, with NaN above Inf: an integer maximum keeps NaN, where
// the floating-point maximum of x86 drops it.

template <class T>
inline constexpr std::uint32_t kMagnitudeMask = sizeof(typename T::Bits) == 4 ? 0x7FFFFFFFu
                                                                              : 0x7FFFu;

/// Signed, because SSE2 has no unsigned 16-bit maximum; magnitudes are never negative.
template <class T>
using DMagnitude = hn::Repartition<std::make_signed_t<typename T::Bits>, DF>;
template <class T>
using VMagnitude = hn::Vec<DMagnitude<T>>;
template <class T>
inline constexpr std::int64_t kMagnitudeLanes = HWY_MAX_BYTES / sizeof(typename T::Bits);

template <class T>
HWY_INLINE VMagnitude<T> LoadMagnitude(const typename T::Bits* p) {
  const hn::RebindToUnsigned<DMagnitude<T>> d;
  const auto mask = hn::Set(d, static_cast<typename T::Bits>(kMagnitudeMask<T>));
  return hn::BitCast(DMagnitude<T>(), hn::And(hn::LoadU(d, p), mask));
}

HWY_INLINE std::uint32_t ReduceMax(hn::Vec<DI> v) {
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(DI(), v)));
}

HWY_INLINE std::uint32_t ReduceMax(V16 v) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const auto half = hn::Max(hn::LowerHalf(v), hn::UpperHalf(hn::Half<DS16>(), v));
  const __m128i m =
      _mm_max_epi16(_mm256_castsi256_si128(half.raw), _mm256_extracti128_si256(half.raw, 1));
#elif HWY_TARGET == HWY_AVX2
  const __m128i m =
      _mm_max_epi16(_mm256_castsi256_si128(v.raw), _mm256_extracti128_si256(v.raw, 1));
#elif HWY_TARGET == HWY_SSE4
  const __m128i m = v.raw;
#endif
#if HWY_TARGET == HWY_EMU128 || !HWY_ARCH_X86
  const hn::Rebind<std::int32_t, hn::Half<DS16>> d;
  const auto widened = hn::Max(hn::PromoteTo(d, hn::LowerHalf(v)),
                               hn::PromoteTo(d, hn::UpperHalf(hn::Half<DS16>(), v)));
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(d, widened)));
#else
  // The one horizontal instruction there is finds a minimum: the maximum is the complement's.
  const __m128i complement = _mm_xor_si128(m, _mm_set1_epi16(-1));
  return 0xFFFFu & ~static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(complement)));
#endif
}

/// The largest magnitude's bits of n contiguous elements; 0 if n is 0.
template <class T>
HWY_INLINE std::uint32_t AmaxBits(const typename T::Bits* p, std::int64_t n) {
  constexpr std::int64_t N = kMagnitudeLanes<T>;
  if (n < N) {
    std::uint32_t largest = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t bits = p[i] & kMagnitudeMask<T>;
      largest = bits > largest ? bits : largest;
    }
    return largest;
  }
  auto m0 = LoadMagnitude<T>(p + n - N), m1 = m0, m2 = m0, m3 = m0;  // the tail, overlapping
  std::int64_t i = 0;
  for (; i + 4 * N <= n; i += 4 * N) {
    m0 = hn::Max(m0, LoadMagnitude<T>(p + i));
    m1 = hn::Max(m1, LoadMagnitude<T>(p + i + N));
    m2 = hn::Max(m2, LoadMagnitude<T>(p + i + 2 * N));
    m3 = hn::Max(m3, LoadMagnitude<T>(p + i + 3 * N));
  }
  for (; i + N <= n; i += N) m0 = hn::Max(m0, LoadMagnitude<T>(p + i));
  return ReduceMax(hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)));
}

// ------------------------------ fp32 to FP8

/// Pairs of integer vectors to one of half the width, per 128-bit block, saturating.
HWY_INLINE V16 Pack(VI a, VI b) { return hn::ReorderDemote2To(DS16(), a, b); }

/// Bytes 0..127 from 16-bit lanes 0..127.
HWY_INLINE V8 PackBytes(V16 a, V16 b) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return V8{_mm512_packus_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return V8{_mm256_packus_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_SSE4
  return V8{_mm_packus_epi16(a.raw, b.raw)};
#else
  return hn::ConcatEven(D8(), hn::BitCast(D8(), b), hn::BitCast(D8(), a));
#endif
}

/// Bytes whose top bit is the 16-bit lane's.
HWY_INLINE V8 PackSigns(V16 a, V16 b) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return V8{_mm512_packs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return V8{_mm256_packs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_SSE4
  return V8{_mm_packs_epi16(a.raw, b.raw)};
#else
  return hn::ConcatOdd(D8(), hn::BitCast(D8(), b), hn::BitCast(D8(), a));
#endif
}

/// Packing works per 128-bit block; this puts its dwords in memory order.
template <bool kInterleaved>
HWY_INLINE V8 UnpackOrder(V8 v) {
  constexpr int B = kLanes / 4;  // 128-bit blocks
  if constexpr (B == 1) {
    return v;
  } else {
    alignas(64) static constexpr auto kTable = [] {
      struct {
        std::int32_t at[kLanes] = {};
      } table;
      for (int j = 0; j < kLanes; ++j) {
        if (kInterleaved) {  // block b holds 8 bytes of the first half, then 8 of the second
          const int q = j / 2, half = q / B, block = q % B;
          table.at[j] = block * 4 + half * 2 + j % 2;
        } else {  // block b holds block b of each of the four vectors
          table.at[j] = j % B * 4 + j / B;
        }
      }
      return table;
    }();
    const DU d;
    return hn::BitCast(D8(),
                       hn::TableLookupLanes(hn::BitCast(d, v), hn::SetTableIndices(d, kTable.at)));
  }
}

/// Rounds finite fp32 to `kMantissa` bits of a format, as codec.h's encode() does, saturating.
///
/// With E the exponent of |x|, not below the format's smallest normal exponent, adding
/// 2^(E + 23 - kMantissa) makes the adder round |x| to the format's grid, normal or subnormal, to
/// nearest even; the low bits of the sum count its steps, and (E - smallest) << kMantissa plus that
/// count is the byte.
template <int kMantissa>
class Encoder {
 public:
  explicit HWY_INLINE Encoder(Format format)
      : max_(hn::Set(DF(), limits(format).max)),
        smallest_normal_(hn::Set(DF(), internal::float_of(SmallestExponent(format) << 23))),
        base_(hn::Set(DS16(), static_cast<std::int16_t>(SmallestExponent(format) << kMantissa))),
        keeps_sign_(hn::Set(
            D8(), static_cast<std::uint8_t>(limits(format).has_negative_zero ? 0x80 : 0x7F))) {}

  /// A chunk's bytes, in memory order.
  template <bool kInterleaved>
  HWY_INLINE V8 Encode(const Chunk& x) const {
    const V16 a = hn::Sub(Pack(Steps(x.v0), Steps(x.v1)), base_);
    const V16 b = hn::Sub(Pack(Steps(x.v2), Steps(x.v3)), base_);
    const V8 magnitude = PackBytes(a, b);
    const DI i;
    const V8 sign = PackSigns(Pack(hn::BitCast(i, x.v0), hn::BitCast(i, x.v1)),
                              Pack(hn::BitCast(i, x.v2), hn::BitCast(i, x.v3)));
    // The sum's top bit is set unless FNUZ, which has no negative zero, rounded to 0.
    const V8 top =
        hn::And(hn::And(sign, hn::Add(magnitude, keeps_sign_)), hn::Set(D8(), std::uint8_t{0x80}));
    return UnpackOrder<kInterleaved>(hn::Or(magnitude, top));
  }

 private:
  static constexpr std::uint32_t SmallestExponent(Format format) {
    return static_cast<std::uint32_t>(127 + 1 - limits(format).bias);
  }

  HWY_INLINE VI Steps(VF x) const {
    const DF f;
    const DI i;
    const VF magnitude = hn::Min(hn::Abs(x), max_);
    const VF exponent_bits = hn::BitCast(f, hn::Set(DU(), 0x7F800000u));
    const VI exponent =
        hn::BitCast(i, hn::Max(hn::And(magnitude, exponent_bits), smallest_normal_));
    const VI grid = hn::Add(exponent, hn::Set(i, (23 - kMantissa) << 23));
    const VI sum = hn::BitCast(i, hn::Add(magnitude, hn::BitCast(f, grid)));
    return hn::Add(hn::ShiftRight<23 - kMantissa>(exponent), hn::Sub(sum, grid));
  }

  VF max_, smallest_normal_;
  V16 base_;
  V8 keeps_sign_;
};

HWY_INLINE Chunk Scaled(const Chunk& x, VF first_half, VF second_half) {
  return {hn::Mul(x.v0, first_half), hn::Mul(x.v1, first_half), hn::Mul(x.v2, second_half),
          hn::Mul(x.v3, second_half)};
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace octavo::kernels
HWY_AFTER_NAMESPACE();

#endif
