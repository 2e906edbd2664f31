#pragma once

#include <cstdint>

#include "octavo/formats/format.h"

namespace octavo {

/// What a cast does with magnitudes beyond the largest finite value.
enum class Overflow : std::uint8_t {
  kSaturate,    ///< +-max, infinities too
  kNonFinite,   ///< e5m2: +-Inf; the other formats: NaN
};

namespace internal {
OCTAVO_HOST_DEVICE constexpr std::uint32_t bits_of(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}
OCTAVO_HOST_DEVICE constexpr float float_of(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
}  // namespace internal

/// The value of `byte` in `format`, exact in fp32 (and in bf16 and fp16's range where it fits).
/// NaN bytes give a quiet NaN, e5m2's 0x7C / 0xFC give +-Inf.
OCTAVO_HOST_DEVICE constexpr float decode(Format format, std::uint8_t byte) {
  const FormatLimits f = limits(format);
  const std::uint32_t sign = static_cast<std::uint32_t>(byte & 0x80u) << 24;
  const std::uint32_t magnitude = byte & 0x7Fu;
  constexpr std::uint32_t kQuietNaN = 0x7FC00000u;
  if (f.has_negative_zero) {
    const std::uint32_t infinity = f.has_infinity ? f.max_byte + 1u : 0x80u;
    if (magnitude == infinity) return internal::float_of(sign | 0x7F800000u);
    if (magnitude > f.max_byte) return internal::float_of(kQuietNaN);
  } else if (byte == f.nan_byte) {
    return internal::float_of(kQuietNaN);
  }
  const std::uint32_t exponent = magnitude >> f.mantissa_bits;
  const std::uint32_t mantissa = magnitude & ((1u << f.mantissa_bits) - 1u);
  if (exponent == 0) {  // subnormal: mantissa * 2^(1 - bias - mantissa_bits), exact in fp32
    const std::uint32_t ulp_exponent =
        static_cast<std::uint32_t>(127 + 1 - f.bias - f.mantissa_bits);
    const float value = static_cast<float>(mantissa) * internal::float_of(ulp_exponent << 23);
    return internal::float_of(internal::bits_of(value) | sign);
  }
  const std::uint32_t fp32_exponent = exponent + static_cast<std::uint32_t>(127 - f.bias);
  return internal::float_of(sign | fp32_exponent << 23 | mantissa << (23 - f.mantissa_bits));
}

/// `x` rounded to `format`: to nearest, ties to even, in one rounding from fp32.
///
/// Magnitudes that round beyond the largest finite value follow `overflow`. NaN gives the format's
/// canonical NaN byte (limits().nan_byte; torch keeps the sign, Octavo does not). FNUZ formats
/// have no negative zero: values that round to it give 0x00. Bit-exact on every backend.
OCTAVO_HOST_DEVICE constexpr std::uint8_t encode(Format format, float x,
                                                 Overflow overflow = Overflow::kSaturate) {
  const FormatLimits f = limits(format);
  const std::uint32_t bits = internal::bits_of(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  if (magnitude > 0x7F800000u) return f.nan_byte;

  std::uint32_t out = 0;
  const int shift = 23 - f.mantissa_bits;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;  // of a normal fp32
  const int min_normal_exponent = 1 - f.bias;
  if (exponent >= min_normal_exponent) {
    const std::uint32_t odd = (magnitude >> shift) & 1u;
    const std::uint32_t rounded = magnitude + ((1u << (shift - 1)) - 1u) + odd;
    out = (rounded >> shift) - (static_cast<std::uint32_t>(127 - f.bias) << f.mantissa_bits);
  } else {
    // Subnormal result: count steps of 2^(1 - bias - mantissa_bits).
    const int below = min_normal_exponent - exponent;
    const int drop = shift + below;  // bits of the 24-bit significand that fall away
    if (drop <= 24) {                // drop == 24: between a quarter... and half a step, ties to 0
      const std::uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
      const std::uint32_t half = 1u << (drop - 1);
      const std::uint32_t odd = (significand >> drop) & 1u;
      out = (significand + (half - 1u) + odd) >> drop;
    }
  }
  if (out > f.max_byte || magnitude == 0x7F800000u) {
    if (overflow == Overflow::kSaturate) {
      out = f.max_byte;
    } else {
      if (!f.has_infinity) return f.nan_byte;
      out = f.max_byte + 1u;
    }
  }
  if (out == 0 && !f.has_negative_zero) return 0;
  return static_cast<std::uint8_t>(sign | out);
}

}  // namespace octavo
