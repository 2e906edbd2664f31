#pragma once

#include <cstdint>
#include <string_view>

#include "octavo/formats/codec.h"
#include "octavo/formats/e8m0.h"

namespace octavo {

/// How an fp32 scale is rounded.
enum class ScaleRounding : std::uint8_t {
  kNone,        ///< inv_scale = fp32(max / amax)
  kPowerOfTwo,  ///< inv_scale rounded down to a power of two
};

/// How the amax of a 1x32 block becomes its e8m0 scale, a power of two. FLOOR, CEIL and EVEN: names
/// and arithmetic as in torchao's ScaleCalculationMode; FLOOR is the choice of the OCP Microscaling
/// (MX) specification 1.0, RCEIL is NVIDIA's (cvt.rp.satfinite.ue8m0x2 of amax / max).
enum class MxRounding : std::uint8_t {
  kFloor,  ///< 2^(floor(log2(amax)) - max_exponent): the top of a block can be clipped
  kCeil,   ///< 2^(ceil(log2(amax)) - max_exponent)
  kEven,   ///< as floor, after amax is rounded half up to the element's mantissa bits
  kRceil,  ///< the smallest power of two >= amax / max: never clips
};

/// The smallest amax a scale is computed from. Blocks below it share its scale, so that max / amax
/// stays finite in fp32. Its value is torchao's EPS, for bit equality.
inline constexpr double kAmaxFloor = 1e-12;

/// inv_scale, which multiplies into FP8: fp32(max / max(fp64(amax), 1e-12)), rounded once, and with
/// kPowerOfTwo then down to a power of two.
///
/// amax: fp32, not negative. 0 gives a finite inv_scale, Inf gives 0, NaN gives NaN: with both
/// roundings, since clearing the mantissa of a NaN would make it Inf. Always a normal fp32 for
/// finite amax. Bit-exact on every backend: fp64 division rounded to fp32 has the bits of fp32
/// division (53 >= 2 * 24 + 2), so a kernel may divide in fp32 above the floor.
OCTAVO_HOST_DEVICE constexpr float inv_scale_of(float amax, Format format, ScaleRounding rounding) {
  if (amax != amax) return amax;
  const double floored =
      static_cast<double>(amax) > kAmaxFloor ? static_cast<double>(amax) : kAmaxFloor;
  const float inv_scale = static_cast<float>(static_cast<double>(limits(format).max) / floored);
  if (rounding == ScaleRounding::kNone) return inv_scale;
  return internal::float_of(internal::bits_of(inv_scale) & internal::kInfinityBits);
}

/// scale, which leads back (value = data * scale): fp32(1 / inv_scale). inv_scale 0 (amax Inf)
/// gives Inf, NaN gives NaN.
OCTAVO_HOST_DEVICE constexpr float scale_of(float inv_scale) {
  // Spelled out because division by zero is not a constant expression.
  if (inv_scale == 0.0f) return internal::float_of(internal::kInfinityBits);
  return 1.0f / inv_scale;
}

/// One element quantised: encode(clamp(fp32(x * inv_scale), -max, max)), to nearest even. NaN (from
/// x, from inv_scale, or Inf * 0) gives the NaN byte. For MX, inv_scale is inv_scale_e8m0(code).
OCTAVO_HOST_DEVICE constexpr std::uint8_t quantize_element(float x, float inv_scale,
                                                           Format format) {
  return encode(format, x * inv_scale, Overflow::kSaturate);
}

/// The e8m0 code of a 1x32 block whose largest magnitude is `amax`: the exponent of MxRounding's
/// formula + 127, not below 0. amax 0 and everything too small for code 0 give 0; NaN and Inf give
/// 255. Finite amax gives at most 128 + 127 - max_exponent. Integer arithmetic on the bits of amax,
/// so every backend agrees.
OCTAVO_HOST_DEVICE constexpr std::uint8_t mx_code_of(float amax, Format format,
                                                     MxRounding rounding) {
  const std::uint32_t bits = internal::bits_of(amax) & 0x7FFFFFFFu;
  if (bits >= internal::kInfinityBits) return kE8M0NaN;
  const FormatLimits f = limits(format);
  // floor(log2(amax)) + 127 for a normal amax; a subnormal ends at code 0 in every mode.
  int exponent = static_cast<int>(bits >> 23);
  const std::uint32_t mantissa = bits & 0x7FFFFFu;
  const std::uint32_t max_mantissa = internal::bits_of(f.max) & 0x7FFFFFu;
  if (rounding == MxRounding::kCeil && mantissa != 0) exponent += 1;
  // amax / max = 1.m / 1.m_max * 2^(exponents' difference): above that power of two iff m > m_max.
  if (rounding == MxRounding::kRceil && mantissa > max_mantissa) exponent += 1;
  if (rounding == MxRounding::kEven) {
    exponent = static_cast<int>((bits + (1u << (22 - f.mantissa_bits))) >> 23);
  }
  const int code = exponent - f.max_exponent;
  return static_cast<std::uint8_t>(code > 0 ? code : 0);
}

/// "none" or "power_of_two".
constexpr std::string_view name(ScaleRounding rounding) {
  return rounding == ScaleRounding::kNone ? "none" : "power_of_two";
}

/// "floor", "ceil", "even" or "rceil".
constexpr std::string_view name(MxRounding rounding) {
  constexpr std::string_view names[] = {"floor", "ceil", "even", "rceil"};
  return names[static_cast<int>(rounding)];
}

}  // namespace octavo
