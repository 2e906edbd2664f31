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

/// How a 1x32 block's amax becomes its e8m0 scale. FLOOR, CEIL and EVEN: names and arithmetic as in
/// torchao's ScaleCalculationMode; FLOOR is the OCP MX specification's choice, RCEIL is NVIDIA's
/// (cvt.rp.satfinite.ue8m0x2 of amax / max).
enum class MxRounding : std::uint8_t {
  kFloor,  ///< 2^(floor(log2(amax)) - max_exponent): the block's top can be clipped
  kCeil,   ///< 2^(ceil(log2(amax)) - max_exponent)
  kEven,   ///< as floor, after amax is rounded to the element's mantissa bits
  kRceil,  ///< the smallest power of two >= amax / max
};

/// The smallest amax a scale is computed from (fp64). Below it a block keeps this scale, so that
/// max / amax stays finite; the value is torchao's EPS, kept for bit equality.
inline constexpr double kAmaxFloor = 1e-12;

/// The factor that multiplies into FP8: fp32(max / max(amax, 1e-12)), computed in fp64 and rounded
/// once, optionally rounded down to a power of two. amax 0 gives a finite factor, Inf gives 0,
/// NaN gives NaN (with both roundings).
OCTAVO_HOST_DEVICE constexpr float inv_scale_of(float amax, Format format, ScaleRounding rounding) {
  if (amax != amax) return amax;
  const double floored = static_cast<double>(amax) > kAmaxFloor ? static_cast<double>(amax) : kAmaxFloor;
  const float inv_scale = static_cast<float>(static_cast<double>(limits(format).max) / floored);
  if (rounding == ScaleRounding::kNone) return inv_scale;
  return internal::float_of(internal::bits_of(inv_scale) & 0xFF800000u);
}

/// The dequantisation factor: fp32(1 / inv_scale). inv_scale 0 gives Inf, NaN gives NaN.
OCTAVO_HOST_DEVICE constexpr float scale_of(float inv_scale) {
  // 1/0 is not a constant expression, and Inf is what amax = Inf must give.
  if (inv_scale == 0.0f) return internal::float_of(0x7F800000u);
  return 1.0f / inv_scale;
}

/// One element quantised with fp32 scaling: encode(clamp(x * inv_scale)). Saturating; NaN (also
/// from Inf * 0) stays NaN.
OCTAVO_HOST_DEVICE constexpr std::uint8_t quantize_element(float x, float inv_scale,
                                                           Format format) {
  return encode(format, x * inv_scale, Overflow::kSaturate);
}

/// The e8m0 code of a 1x32 block whose largest magnitude is `amax`. NaN or Inf gives 255; amax 0
/// gives 0. Integer arithmetic on the fp32 bits of amax only, so every backend agrees.
OCTAVO_HOST_DEVICE constexpr std::uint8_t mx_code_of(float amax, Format format, MxRounding rounding) {
  const std::uint32_t bits = internal::bits_of(amax) & 0x7FFFFFFFu;
  if (bits >= 0x7F800000u) return kE8M0NaN;
  const FormatLimits f = limits(format);
  // floor(log2(amax)) + 127 for a normal amax; subnormals end at code 0 in every mode.
  int exponent = static_cast<int>(bits >> 23);
  const std::uint32_t mantissa = bits & 0x7FFFFFu;
  const std::uint32_t max_mantissa = internal::bits_of(f.max) & 0x7FFFFFu;
  if (rounding == MxRounding::kCeil && mantissa != 0) exponent += 1;
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
