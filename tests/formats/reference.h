#pragma once

// The scalar reference of the four FP8 formats, written from the specifications' tables with
// ldexp and a search through all values, sharing nothing with octavo/formats. Exact: every FP8
// value, every midpoint between two of them and every fp32 fits in a double.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "octavo/formats/codec.h"

namespace octavo {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

namespace reference {

/// One format as its specification states it.
struct Spec {
  Format format;
  const char* name;
  int mantissa_bits;
  int bias;
  int finite_count;  ///< bytes 0 .. finite_count - 1 are the finite non-negative values
  bool fnuz;
  bool infinity;
};

inline constexpr Spec kSpecs[] = {
    // OFP8 table 1: S.1111.111 is NaN, so S.1111.110 is the largest.
    {Format::kE4M3FN, "e4m3fn", 3, 7, 0x7F, false, false},
    // OFP8 table 1: S.11111.00 is infinity, S.11111.{01,10,11} are NaN.
    {Format::kE5M2, "e5m2", 2, 15, 0x7C, false, true},
    // FNUZ: all exponents are of finite values, 1000 0000 is NaN.
    {Format::kE4M3FNUZ, "e4m3fnuz", 3, 8, 0x80, true, false},
    {Format::kE5M2FNUZ, "e5m2fnuz", 2, 16, 0x80, true, false},
};

inline void PrintTo(const Spec& spec, std::ostream* out) { *out << spec.name; }

/// What a byte pattern would mean if no pattern were reserved; `magnitude` may be 0x80: the value
/// after the last one.
inline double plain_value(const Spec& spec, int magnitude) {
  const int exponent = magnitude >> spec.mantissa_bits;
  const int mantissa = magnitude & ((1 << spec.mantissa_bits) - 1);
  const int one = 1 << spec.mantissa_bits;
  if (exponent == 0) return std::ldexp(mantissa, 1 - spec.bias - spec.mantissa_bits);
  return std::ldexp(one + mantissa, exponent - spec.bias - spec.mantissa_bits);
}

inline double decode(const Spec& spec, int byte) {
  const bool negative = byte >= 0x80;
  const int magnitude = byte & 0x7F;
  if (spec.fnuz && byte == 0x80) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude >= spec.finite_count) {
    if (spec.infinity && magnitude == spec.finite_count) {
      return negative ? -HUGE_VAL : HUGE_VAL;
    }
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double value = plain_value(spec, magnitude);
  return negative ? -value : value;
}

/// Rounds to the nearest value, ties to the even byte, by searching the midpoints.
class Encoder {
 public:
  explicit Encoder(const Spec& spec) : spec_(spec) {
    for (int byte = 0; byte < spec.finite_count; ++byte) {
      midpoints_.push_back((plain_value(spec, byte) + plain_value(spec, byte + 1)) / 2);
    }
  }

  /// midpoints()[i] lies between the values of byte i and i + 1.
  const std::vector<double>& midpoints() const { return midpoints_; }

  std::uint8_t operator()(float x, Overflow overflow) const {
    if (std::isnan(x)) return spec_.fnuz ? 0x80 : 0x7F;
    const double magnitude = std::fabs(static_cast<double>(x));
    const auto above = std::lower_bound(midpoints_.begin(), midpoints_.end(), magnitude);
    int byte = static_cast<int>(above - midpoints_.begin());
    if (above != midpoints_.end() && *above == magnitude && byte % 2 == 1) ++byte;
    if (byte >= spec_.finite_count) {
      if (overflow == Overflow::kSaturate) {
        byte = spec_.finite_count - 1;
      } else if (spec_.infinity) {
        byte = spec_.finite_count;
      } else {
        return spec_.fnuz ? 0x80 : 0x7F;
      }
    }
    if (byte == 0 && spec_.fnuz) return 0;
    return static_cast<std::uint8_t>(std::signbit(x) ? byte | 0x80 : byte);
  }

 private:
  Spec spec_;
  std::vector<double> midpoints_;
};

}  // namespace reference
}  // namespace octavo
