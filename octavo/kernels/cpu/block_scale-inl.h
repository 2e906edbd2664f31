// Scales of many blocks at once, as kernels/block_scale.h computes one. Compiled once per target,
// as simd-inl.h.
#if defined(OCTAVO_KERNELS_CPU_BLOCK_SCALE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OCTAVO_KERNELS_CPU_BLOCK_SCALE_INL_H_
#undef OCTAVO_KERNELS_CPU_BLOCK_SCALE_INL_H_
#else
#define OCTAVO_KERNELS_CPU_BLOCK_SCALE_INL_H_
#endif

#include "octavo/kernels/block_scale.h"
#include "octavo/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace octavo::kernels {
namespace HWY_NAMESPACE {

/// inv_scale[i] and scale[i] from amax[i], bit for bit as inv_scale_of() and scale_of(). n is
/// rounded up to whole vectors: the arrays must reach that far.
HWY_INLINE void Float32Scales(const LayoutTarget& target, const float* amax, std::int64_t n,
                              float* inv_scale, float* scale) {
  const DF d;
  const DU u;
  // Above the floor one fp32 division gives the bits of the fp64 one rounded to fp32.
  const float floor = static_cast<float>(kAmaxFloor);
  const auto of_floor = hn::Set(d, inv_scale_of(0.0f, target.format, ScaleRounding::kNone));
  const auto max = hn::Set(d, limits(target.format).max);
  const bool power_of_two = target.scale_rounding == ScaleRounding::kPowerOfTwo;
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const auto a = hn::LoadU(d, amax + i);
    static_assert(static_cast<double>(static_cast<float>(kAmaxFloor)) < kAmaxFloor,
                  "the nearest fp32 lies below the floor: it belongs to the floor's side");
    // NaN is not below the floor, and the division keeps it.
    auto inv = hn::IfThenElse(hn::Le(a, hn::Set(d, floor)), of_floor, hn::Div(max, a));
    if (power_of_two) {
      const auto exponent = hn::And(inv, hn::BitCast(d, hn::Set(u, 0xFF800000u)));
      inv = hn::IfThenElse(hn::Eq(inv, inv), exponent, inv);
    }
    hn::StoreU(inv, d, inv_scale + i);
    hn::StoreU(hn::Div(hn::Set(d, 1.0f), inv), d, scale + i);
  }
}

/// What is added to an amax's bits so that the carry into the exponent rounds it as the mode says.
constexpr std::int32_t MxCarry(const LayoutTarget& target) {
  const FormatLimits f = limits(target.format);
  switch (target.mx_rounding) {
    case MxRounding::kFloor:
      return 0;
    case MxRounding::kCeil:
      return 0x7FFFFF;
    case MxRounding::kEven:
      return 1 << (22 - f.mantissa_bits);
    case MxRounding::kRceil:
      break;
  }
  return 0x7FFFFF - static_cast<std::int32_t>(internal::bits_of(f.max) & 0x7FFFFFu);
}

/// inv_scale[i] and code[i] from amax[i], bit for bit as inv_scale_e8m0() and mx_code_of(). n is
/// rounded up to whole vectors: inv_scale and amax must reach that far, codes are one int each.
HWY_INLINE void MxScales(const LayoutTarget& target, const float* amax, std::int64_t n,
                         float* inv_scale, std::int32_t* code) {
  const DI d;
  const DF f;
  const auto carry = hn::Set(d, MxCarry(target));
  const auto max_exponent = hn::Set(d, limits(target.format).max_exponent);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const auto bits = hn::BitCast(d, hn::LoadU(f, amax + i));
    const auto exponent = hn::ShiftRight<23>(hn::Add(bits, carry));
    const auto finite = hn::Lt(bits, hn::Set(d, 0x7F800000));
    const auto of_finite = hn::Max(hn::Sub(exponent, max_exponent), hn::Zero(d));
    // No code of a finite amax comes near 254, so its inverse is a normal number.
    const auto inverse = hn::ShiftLeft<23>(hn::Sub(hn::Set(d, 254), of_finite));
    hn::StoreU(hn::IfThenElse(finite, of_finite, hn::Set(d, 255)), d, code + i);
    hn::StoreU(hn::BitCast(f, hn::IfThenElse(finite, inverse, hn::Set(d, 0x7FC00000))), f,
               inv_scale + i);
  }
}

/// Whether every block is finite (is_finite_block()). n as above.
HWY_INLINE bool AllFinite(const float* inv_scale, std::int64_t n) {
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) finite &= is_finite_block(inv_scale[i]);
  return finite;
}

/// inv_scale[i] of n blocks (n <= 128), whose scales or codes go to target.scale[at + i * step].
/// amax and inv_scale must reach to the next multiple of 16.
HWY_INLINE void BlockScales(const LayoutTarget& target, const float* amax, std::int64_t n,
                            float* inv_scale, std::int64_t at, std::int64_t step) {
  if (target.blocks == Blocks::kMx1x32 || target.blocks == Blocks::kMx32x1) {
    std::int32_t codes[128];
    MxScales(target, amax, n, inv_scale, codes);
    auto* out = static_cast<std::uint8_t*>(target.scale) + at;
    for (std::int64_t i = 0; i < n; ++i) out[i * step] = static_cast<std::uint8_t>(codes[i]);
  } else {
    float scales[128];
    Float32Scales(target, amax, n, inv_scale, scales);
    auto* out = static_cast<float*>(target.scale) + at;
    for (std::int64_t i = 0; i < n; ++i) out[i * step] = scales[i];
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace octavo::kernels
HWY_AFTER_NAMESPACE();

#endif
