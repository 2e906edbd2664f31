#pragma once

#include <cstdint>

#include "octavo/formats/format.h"

namespace octavo {

/// What a cast does with magnitudes beyond the largest finite value.
enum class Overflow : std::uint8_t {
  kSaturate,   ///< +-max, infinities too
  kNonFinite,  ///< e5m2: +-Inf; the other formats: NaN
};

namespace internal {
OCTAVO_HOST_DEVICE constexpr std::uint32_t bits_of(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}
OCTAVO_HOST_DEVICE constexpr float float_of(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
inline constexpr std::uint32_t kInfinityBits = 0x7F800000u;
inline constexpr std::uint32_t kQuietNaNBits = 0x7FC00000u;
}  // namespace internal

/// The value of `byte` in `format`. Exact in fp32, and in bf16 and fp16 too: no value needs more
/// than 4 significant bits or lies outside 2^-17 ... 57344. Every NaN byte gives fp32's positive
/// quiet NaN (torch keeps the sign); e5m2's 0x7C and 0xFC give +-Inf.
OCTAVO_HOST_DEVICE constexpr float decode(Format format, std::uint8_t byte) {
  const FormatLimits f = limits(format);
  const std::uint32_t sign = static_cast<std::uint32_t>(byte & 0x80u) << 24;
  const std::uint32_t magnitude = byte & 0x7Fu;
  if (f.has_negative_zero) {
    if (f.has_infinity && magnitude == f.max_byte + 1u) {
      return internal::float_of(sign | internal::kInfinityBits);
    }
    if (magnitude > f.max_byte) return internal::float_of(internal::kQuietNaNBits);
  } else if (byte == f.nan_byte) {
    return internal::float_of(internal::kQuietNaNBits);
  }
  const std::uint32_t exponent = magnitude >> f.mantissa_bits;
  const std::uint32_t mantissa = magnitude & ((1u << f.mantissa_bits) - 1u);
  if (exponent == 0) {  // mantissa steps of 2^(1 - bias - mantissa_bits)
    const std::uint32_t step_exponent =
        static_cast<std::uint32_t>(127 + 1 - f.bias - f.mantissa_bits);
    const float value = static_cast<float>(mantissa) * internal::float_of(step_exponent << 23);
    return internal::float_of(internal::bits_of(value) | sign);
  }
  const std::uint32_t fp32_exponent = exponent + static_cast<std::uint32_t>(127 - f.bias);
  return internal::float_of(sign | fp32_exponent << 23 | mantissa << (23 - f.mantissa_bits));
}

/// `x` rounded to `format`: to nearest, ties to even, in one rounding from fp32.
///
/// Values are rounded as if the format had no largest exponent; a result beyond the largest finite
/// value then follows `overflow` (so e4m3fn takes 464, a tie, to 448, and overflows just above).
/// NaN gives the format's canonical NaN byte, limits().nan_byte: its sign is dropped, which torch
/// keeps. FNUZ formats have no negative zero: what rounds to zero gives 0x00. Integer arithmetic
/// only, so every backend has the same bytes.
OCTAVO_HOST_DEVICE constexpr std::uint8_t encode(Format format, float x,
                                                 Overflow overflow = Overflow::kSaturate) {
  const FormatLimits f = limits(format);
  const std::uint32_t bits = internal::bits_of(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  if (magnitude > internal::kInfinityBits) return f.nan_byte;

  std::uint32_t out = 0;
  const int shift = 23 - f.mantissa_bits;
  // floor(log2(magnitude)); -127 for zero and fp32 subnormals, which all formats round to zero.
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const int min_normal_exponent = 1 - f.bias;
  if (exponent >= min_normal_exponent) {
    // A carry out of the mantissa moves on into the exponent, as it should.
    const std::uint32_t odd = (magnitude >> shift) & 1u;
    const std::uint32_t rounded = magnitude + ((1u << (shift - 1)) - 1u) + odd;
    out = (rounded >> shift) - (static_cast<std::uint32_t>(127 - f.bias) << f.mantissa_bits);
  } else {
    // Subnormal result: whole steps of 2^(1 - bias - mantissa_bits) in the 24-bit significand.
    const int drop = shift + min_normal_exponent - exponent;  // bits that fall away, > shift
    // drop 24 is at least half a step and may round up to one; beyond, less than half is zero.
    if (drop <= 24) {
      const std::uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
      const std::uint32_t odd = (significand >> drop) & 1u;
      out = (significand + ((1u << (drop - 1)) - 1u) + odd) >> drop;
    }
  }
  if (out > f.max_byte) {  // infinities too
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
