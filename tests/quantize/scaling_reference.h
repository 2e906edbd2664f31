#pragma once

// Scaling and quantising by definition, in double precision and ldexp: what the tests of the
// kernels and of quantize_operand() compare with.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "octavo/formats/format.h"
#include "octavo/formats/scaling.h"
#include "tests/formats/reference.h"

namespace octavo::reference {

/// x rounded to the nearest value of `format`, ties to even, saturating; NaN canonical.
inline std::uint8_t cast(Format format, float x) {
  static const Encoder encoders[] = {Encoder(kSpecs[0]), Encoder(kSpecs[1]), Encoder(kSpecs[2]),
                                     Encoder(kSpecs[3])};
  return encoders[static_cast<int>(format)](x, Overflow::kSaturate);
}

/// inv_scale, which multiplies into FP8.
inline float inv_scale(Format format, float amax, ScaleRounding rounding) {
  if (std::isnan(amax)) return std::numeric_limits<float>::quiet_NaN();
  const double floored = std::max(static_cast<double>(amax), 1e-12);
  const float inv_scale = static_cast<float>(limits(format).max / floored);
  if (rounding == ScaleRounding::kNone || inv_scale == 0) return inv_scale;
  return std::ldexp(1.0f, std::ilogb(inv_scale));
}

/// scale, which leads back.
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
  return cast(format, static_cast<float>(static_cast<double>(x) * static_cast<double>(inv_scale)));
}

}  // namespace octavo::reference
