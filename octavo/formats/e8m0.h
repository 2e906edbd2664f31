#pragma once

#include <cstdint>

#include "octavo/formats/codec.h"

namespace octavo {

/// The e8m0 scale format of the OCP Microscaling Formats (MX) specification 1.0: value =
/// 2^(code - 127), code 255 is NaN. There is no zero and no sign.
inline constexpr std::uint8_t kE8M0NaN = 255;

/// The value of an e8m0 code, exact: code 0 is 2^-127 (an fp32 subnormal), 255 is NaN.
OCTAVO_HOST_DEVICE constexpr float decode_e8m0(std::uint8_t code) {
  if (code == 0) return internal::float_of(0x00400000u);
  if (code == kE8M0NaN) return internal::float_of(internal::kQuietNaNBits);
  return internal::float_of(static_cast<std::uint32_t>(code) << 23);
}

/// inv_scale for an e8m0 code: 1 / decode_e8m0(code) = 2^(127 - code), exact. Code 254 gives
/// 2^-127, an fp32 subnormal; 255 gives NaN.
OCTAVO_HOST_DEVICE constexpr float inv_scale_e8m0(std::uint8_t code) {
  if (code == kE8M0NaN) return internal::float_of(internal::kQuietNaNBits);
  return decode_e8m0(static_cast<std::uint8_t>(254 - code));
}

/// |x| rounded to an e8m0 code, bit for bit as torch's cast to float8_e8m0fnu: the fp32 exponent
/// field, plus one when the significand is 1.5 or more (1.25 -> 127, 1.5 -> 128, 3.0 -> 129).
///
/// Nearest holds for normal fp32. Subnormals: up to and with 2^-127 -> 0, so 0 -> 0; above it -> 1
/// (2^-126). 1.5 * 2^127 and more round past the largest code and give 255, like NaN and Inf.
/// The sign is ignored. MX block scales do not come from this: see mx_code_of().
OCTAVO_HOST_DEVICE constexpr std::uint8_t encode_e8m0_nearest(float x) {
  const std::uint32_t bits = internal::bits_of(x) & 0x7FFFFFFFu;
  const std::uint32_t exponent = bits >> 23;
  if (exponent == 255) return kE8M0NaN;
  const bool guard = bits & 0x400000u;
  const bool round = bits & 0x200000u;
  const bool sticky = bits & 0x1FFFFFu;
  const bool lsb = exponent > 0;
  const bool up = guard && (lsb || round || sticky);
  return static_cast<std::uint8_t>(exponent + (up ? 1u : 0u));
}

}  // namespace octavo
