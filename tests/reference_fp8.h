#pragma once

// Quantisation by definition, in double precision and ldexp: what the kernels' tests compare with.
// Shares with the library only the table of format limits.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "octavo/formats/format.h"
#include "octavo/formats/scaling.h"

namespace octavo::reference {

/// x rounded to the nearest value of `format`, ties to even, saturating; NaN canonical.
inline std::uint8_t cast(Format format, float x) {
  const FormatLimits f = limits(format);
  if (std::isnan(x)) return f.nan_byte;
  const int min_exponent = 1 - f.bias;
  const double magnitude = std::fabs(static_cast<double>(x));
  std::uint8_t byte = f.max_byte;
  if (magnitude < 2.0 * f.max) {
    const int exponent =
        magnitude == 0 ? min_exponent : std::max(min_exponent, std::ilogb(magnitude));
    // std::nearbyint rounds ties to even in the default rounding mode.
    const double steps = std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent));
    const double value = std::ldexp(steps, exponent - f.mantissa_bits);
    if (value <= f.max) {
      if (value < std::ldexp(1.0, min_exponent)) {
        byte = static_cast<std::uint8_t>(steps);
      } else {
        const int e = std::ilogb(value);
        const double fraction = std::ldexp(value, -e) - 1.0;
        byte = static_cast<std::uint8_t>(((e + f.bias) << f.mantissa_bits) +
                                         static_cast<int>(std::ldexp(fraction, f.mantissa_bits)));
      }
    }
  }
  if (byte == 0 && !f.has_negative_zero) return 0;
  return static_cast<std::uint8_t>(byte | (std::signbit(x) ? 0x80 : 0));
}

/// The factor that multiplies into FP8.
inline float inv_scale(Format format, float amax, ScaleRounding rounding) {
  if (std::isnan(amax)) return std::numeric_limits<float>::quiet_NaN();
  const double floored = std::max(static_cast<double>(amax), 1e-12);
  const float factor = static_cast<float>(limits(format).max / floored);
  if (rounding == ScaleRounding::kNone || factor == 0) return factor;
  return std::ldexp(1.0f, std::ilogb(factor));
}

/// The dequantisation factor.
inline float scale(float inv_scale) {
  return static_cast<float>(1.0 / static_cast<double>(inv_scale));
}

/// The e8m0 code of a block.
inline int mx_code(Format format, float amax, MxRounding rounding) {
  if (!std::isfinite(amax)) return 255;
  const FormatLimits f = limits(format);
  // The smallest or largest k that the rounding's definition allows, by search from below.
  int k = -127;
  const auto power = [](int exponent) { return std::ldexp(1.0, exponent); };
  switch (rounding) {
    case MxRounding::kFloor:  // the largest with 2^(k + max_exponent) <= amax
      while (power(k + 1 + f.max_exponent) <= amax) ++k;
      break;
    case MxRounding::kCeil:  // the smallest with 2^(k + max_exponent) >= amax
      while (power(k + f.max_exponent) < amax) ++k;
      break;
    case MxRounding::kEven: {  // floor, of amax rounded half up to mantissa_bits
      const double up = 1.0 - std::ldexp(1.0, -f.mantissa_bits - 2);
      while (power(k + 1 + f.max_exponent) * up <= amax) ++k;
      break;
    }
    case MxRounding::kRceil:  // the smallest with 2^k >= amax / max
      while (power(k) * f.max < amax) ++k;
      break;
  }
  return k + 127;
}

/// One element: cast(clamp(x * inv_scale)). The product of two floats is exact in double, so the
/// conversion is the one rounding that an fp32 multiplication makes.
inline std::uint8_t quantize(Format format, float x, float inv_scale) {
  return cast(format,
                static_cast<float>(static_cast<double>(x) * static_cast<double>(inv_scale)));
}

}  // namespace octavo::reference
