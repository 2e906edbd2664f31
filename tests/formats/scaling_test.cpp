#include "octavo/formats/scaling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/formats/reference.h"

namespace octavo {
namespace {

using std::nextafter;

constexpr float kMax = std::numeric_limits<float>::max();
constexpr ScaleRounding kBothRoundings[] = {ScaleRounding::kNone, ScaleRounding::kPowerOfTwo};
constexpr MxRounding kMxRoundings[] = {MxRounding::kFloor, MxRounding::kCeil, MxRounding::kEven,
                                       MxRounding::kRceil};
// MX is OCP only, but the arithmetic is defined for every format and tested on all.

static_assert(inv_scale_of(kNaN, Format::kE4M3FN, ScaleRounding::kPowerOfTwo) != 0.0f);
static_assert(scale_of(0.0f) == kInf);
static_assert(quantize_element(-6.0f, 74.666664f, Format::kE4M3FN) == 0xFE);
static_assert(mx_code_of(448.0001f, Format::kE4M3FN, MxRounding::kRceil) == 128);

/// fp32 magnitudes where arithmetic goes wrong first, and many others.
std::vector<float> amaxes() {
  std::vector<float> all = {0.0f,
                            std::numeric_limits<float>::denorm_min(),
                            0x1p-127f,
                            1e-36f,
                            1e-13f,
                            kMax,
                            nextafter(kMax, 0.0f)};
  for (int exponent = -149; exponent < 128; ++exponent) {
    for (float significand : {1.0f, 1.5f, 1.75f, 1.875f}) {
      const float x = std::ldexp(significand, exponent);
      for (float y : {nextafter(x, 0.0f), x, nextafter(x, kInf)}) {
        if (y > 0 && y <= kMax) all.push_back(y);
      }
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 200'000; ++i) {
    const float x = std::fabs(internal::float_of(static_cast<std::uint32_t>(random())));
    if (x <= kMax) all.push_back(x);
  }
  return all;
}

TEST(Scaling, InvScaleIsTheFormula) {
  for (const reference::Spec& spec : reference::kSpecs) {
    const double max = reference::decode(spec, spec.finite_count - 1);
    for (float amax : amaxes()) {
      const float plain = static_cast<float>(max / std::max(static_cast<double>(amax), 1e-12));
      ASSERT_EQ(inv_scale_of(amax, spec.format, ScaleRounding::kNone), plain) << amax;
      ASSERT_EQ(inv_scale_of(amax, spec.format, ScaleRounding::kPowerOfTwo),
                std::ldexp(1.0f, std::ilogb(plain)))
          << amax;
      // What a kernel may use instead of fp64.
      if (amax > 1e-12f) {
        ASSERT_EQ(plain, static_cast<float>(max) / amax) << amax;
      }
    }
  }
}

TEST(Scaling, FiniteAmaxGivesNormalScales) {
  for (Format format : kAllFormats) {
    for (ScaleRounding rounding : kBothRoundings) {
      for (float amax : amaxes()) {
        const float inv_scale = inv_scale_of(amax, format, rounding);
        const float scale = scale_of(inv_scale);
        ASSERT_TRUE(std::isnormal(inv_scale)) << name(format) << " amax " << amax;
        ASSERT_TRUE(std::isnormal(scale)) << name(format) << " amax " << amax;
        ASSERT_EQ(scale, 1.0f / inv_scale);
      }
    }
  }
}

// Scale and clamp come from one table: amax lands on the format's maximum (fp32), or above half of
// it (power of two). Below the floor of 1e-12 the block keeps the floor's scale.
TEST(Scaling, AmaxMapsToTheMaximum) {
  for (Format format : kAllFormats) {
    const FormatLimits f = limits(format);
    for (float amax : amaxes()) {
      if (amax < 1e-12f) continue;
      const float plain = inv_scale_of(amax, format, ScaleRounding::kNone);
      ASSERT_EQ(quantize_element(amax, plain, format), f.max_byte) << name(format) << " " << amax;
      const float rounded = inv_scale_of(amax, format, ScaleRounding::kPowerOfTwo);
      ASSERT_TRUE(amax * rounded <= f.max && amax * rounded > f.max * 0.5f * (1 - 0x1p-23f))
          << name(format) << " " << amax;
    }
  }
}

// data * scale stays inside fp32, except for the one documented case: power-of-two scales and
// |x| >= 248 * 2^120 (e5m2: 240 * 2^120), which rounds up to 2^128.
TEST(Scaling, ProductsPastFp32OnlyWhereDocumented) {
  for (Format format : {Format::kE4M3FN, Format::kE5M2}) {
    const float edge = std::ldexp(format == Format::kE4M3FN ? 248.0f : 240.0f, 120);
    for (ScaleRounding rounding : kBothRoundings) {
      const float inv_scale = inv_scale_of(kMax, format, rounding);
      auto dequantised = [&](float x) {
        return decode(format, quantize_element(x, inv_scale, format)) * scale_of(inv_scale);
      };
      const bool power_of_two = rounding == ScaleRounding::kPowerOfTwo;
      EXPECT_EQ(std::isfinite(dequantised(kMax)), !power_of_two);
      EXPECT_EQ(std::isfinite(dequantised(edge)), !power_of_two);
      EXPECT_TRUE(std::isfinite(dequantised(nextafter(edge, 0.0f))));
    }
  }
}

TEST(Scaling, NonFiniteAmax) {
  for (Format format : kAllFormats) {
    const std::uint8_t nan_byte = limits(format).nan_byte;
    for (ScaleRounding rounding : kBothRoundings) {
      // NaN: every byte.
      const float nan = inv_scale_of(kNaN, format, rounding);
      EXPECT_TRUE(std::isnan(nan));
      EXPECT_TRUE(std::isnan(scale_of(nan)));
      for (float x : {0.0f, 1.0f, -kMax, kNaN})
        EXPECT_EQ(quantize_element(x, nan, format), nan_byte);
      // Inf: that byte; the others are zero with scale Inf, so NaN once dequantised.
      const float zero = inv_scale_of(kInf, format, rounding);
      EXPECT_EQ(zero, 0.0f);
      EXPECT_EQ(scale_of(zero), kInf);
      EXPECT_EQ(quantize_element(kInf, zero, format), nan_byte);
      EXPECT_EQ(quantize_element(-kInf, zero, format), nan_byte);
      EXPECT_EQ(quantize_element(kMax, zero, format), 0x00);
      EXPECT_TRUE(std::isnan(decode(format, 0x00) * scale_of(zero)));
    }
  }
}

/// The real number log2(amax) + extra is compared exactly: amax as significand and exponent.
struct Split {
  double significand;  ///< in [1, 2)
  int exponent;
};
Split split(float x) {
  int exponent = 0;
  const double fraction = std::frexp(static_cast<double>(x), &exponent);
  return {2 * fraction, exponent - 1};
}

int clamped_code(int exponent) { return std::max(exponent, -127) + 127; }

TEST(Mx, CodesAreTheFormulas) {
  for (const reference::Spec& spec : reference::kSpecs) {
    const double max = reference::decode(spec, spec.finite_count - 1);
    const int max_exponent = std::ilogb(max);
    for (float amax : amaxes()) {
      if (amax == 0) continue;
      const Split s = split(amax);
      ASSERT_EQ(mx_code_of(amax, spec.format, MxRounding::kFloor),
                clamped_code(s.exponent - max_exponent))
          << amax;
      ASSERT_EQ(mx_code_of(amax, spec.format, MxRounding::kCeil),
                clamped_code(s.exponent + (s.significand > 1) - max_exponent))
          << amax;
      // Half up to the element's mantissa: only the carry into the exponent matters.
      const double step = std::ldexp(1.0, -spec.mantissa_bits);
      const bool carry = std::floor(s.significand / step + 0.5) * step >= 2;
      ASSERT_EQ(mx_code_of(amax, spec.format, MxRounding::kEven),
                clamped_code(s.exponent + carry - max_exponent))
          << amax;
      // RCEIL by its definition: the smallest k >= -127 with 2^k * max >= amax (exact in fp64).
      int k = std::max(-127, s.exponent - 20);
      while (std::ldexp(max, k) < static_cast<double>(amax)) ++k;
      ASSERT_EQ(mx_code_of(amax, spec.format, MxRounding::kRceil), k + 127) << amax;
    }
  }
}

TEST(Mx, ZeroNaNAndInfinity) {
  for (Format format : kAllFormats) {
    for (MxRounding rounding : kMxRoundings) {
      EXPECT_EQ(mx_code_of(0.0f, format, rounding), 0);
      EXPECT_EQ(mx_code_of(kInf, format, rounding), 255);
      EXPECT_EQ(mx_code_of(kNaN, format, rounding), 255);
      // Finite blocks never reach NaN, whatever the mode.
      EXPECT_LE(mx_code_of(kMax, format, rounding), 255 - limits(format).max_exponent);
    }
    for (float x : {0.0f, 1.0f, -kMax, kInf}) {
      EXPECT_EQ(quantize_element(x, inv_scale_e8m0(255), format), limits(format).nan_byte);
    }
  }
}

// RCEIL and CEIL never clip a block's largest element; FLOOR and EVEN may.
TEST(Mx, RceilAndCeilNeverClip) {
  for (Format format : kAllFormats) {
    for (MxRounding rounding : {MxRounding::kCeil, MxRounding::kRceil}) {
      for (float amax : amaxes()) {
        const float scaled = amax * inv_scale_e8m0(mx_code_of(amax, format, rounding));
        ASSERT_LE(scaled, limits(format).max) << name(format) << " " << amax;
      }
    }
  }
}

// tests/field_cases.md, "Scaling and quantising": the lines about single numbers.
TEST(ScalingFieldCases, AmaxZero) {
  for (Format format : kAllFormats) {
    for (ScaleRounding rounding : kBothRoundings) {
      const float inv_scale = inv_scale_of(0.0f, format, rounding);
      EXPECT_TRUE(std::isfinite(inv_scale) && std::isfinite(scale_of(inv_scale)));
      EXPECT_EQ(quantize_element(0.0f, inv_scale, format), 0x00);
      EXPECT_EQ(quantize_element(-0.0f, inv_scale, format),
                flavour_of(format) == Flavour::kOCP ? 0x80 : 0x00);
      EXPECT_EQ(decode(format, 0x00) * scale_of(inv_scale), 0.0f);
    }
  }
}

TEST(ScalingFieldCases, AmaxBelowMaxOverFltMax) {
  for (Format format : kAllFormats) {
    for (ScaleRounding rounding : kBothRoundings) {
      const float inv_scale = inv_scale_of(1e-36f, format, rounding);
      const float scale = scale_of(inv_scale);
      EXPECT_TRUE(std::isfinite(inv_scale) && std::isfinite(scale));
      for (float x : {0.0f, 1e-36f, -1e-36f}) {
        const float value = decode(format, quantize_element(x, inv_scale, format)) * scale;
        EXPECT_TRUE(std::isfinite(value)) << x;
        EXPECT_TRUE(x != 0 || value == 0) << value;
      }
    }
  }
}

TEST(ScalingFieldCases, ScalesBeyondFp16) {
  const float amax = 1e-3f;  // of an fp16 tensor; 448000 does not fit into fp16
  const float inv_scale = inv_scale_of(amax, Format::kE4M3FN, ScaleRounding::kNone);
  EXPECT_FLOAT_EQ(inv_scale, 448000.0f);
  EXPECT_GT(inv_scale, 65504.0f);
}

TEST(ScalingFieldCases, MxFloorClipsTheTop) {
  constexpr Format f = Format::kE4M3FN;
  const std::uint8_t floor = mx_code_of(960.0f, f, MxRounding::kFloor);
  EXPECT_EQ(decode_e8m0(floor), 2.0f);
  EXPECT_EQ(quantize_element(957.0f, inv_scale_e8m0(floor), f), 0x7E);
  EXPECT_EQ(decode(f, 0x7E) * decode_e8m0(floor), 896.0f);
  const std::uint8_t rceil = mx_code_of(960.0f, f, MxRounding::kRceil);
  EXPECT_EQ(decode_e8m0(rceil), 4.0f);
  EXPECT_EQ(quantize_element(957.0f, inv_scale_e8m0(rceil), f), 0x77);
  EXPECT_EQ(decode(f, 0x77) * decode_e8m0(rceil), 960.0f);
  EXPECT_EQ(mx_code_of(448.0001f, f, MxRounding::kRceil), 128);
  EXPECT_EQ(mx_code_of(448.0001f, f, MxRounding::kFloor), 127);
}

TEST(ScalingFieldCases, DirectionOfTheScale) {
  constexpr Format f = Format::kE4M3FN;
  const float inv_scale = inv_scale_of(6.0f, f, ScaleRounding::kNone);
  EXPECT_EQ(inv_scale, 74.666664f);
  EXPECT_EQ(scale_of(inv_scale), 0.013392857f);
  EXPECT_EQ(quantize_element(0.5f, inv_scale, f), 0x61);
  EXPECT_EQ(quantize_element(1.0f, inv_scale, f), 0x69);
  EXPECT_EQ(quantize_element(3.0f, inv_scale, f), 0x76);
  EXPECT_EQ(quantize_element(-6.0f, inv_scale, f), 0xFE);
}

TEST(ScalingFieldCases, NaNSurvivesPowerOfTwoRounding) {
  // Clearing the mantissa of a NaN would make it Inf.
  for (std::uint32_t pattern : {0x7FC00000u, 0x7F800001u, 0xFFC00000u}) {
    EXPECT_TRUE(std::isnan(
        inv_scale_of(internal::float_of(pattern), Format::kE4M3FN, ScaleRounding::kPowerOfTwo)));
  }
}

TEST(ScalingFieldCases, PowerOfTwoJustAboveOneAndThreeQuarters) {
  const float amax = nextafter(1.75f, 2.0f);
  EXPECT_EQ(inv_scale_of(amax, Format::kE4M3FN, ScaleRounding::kPowerOfTwo), 128.0f);
  EXPECT_EQ(inv_scale_of(1.75f, Format::kE4M3FN, ScaleRounding::kPowerOfTwo), 256.0f);
}

TEST(Scaling, Names) {
  EXPECT_EQ(name(ScaleRounding::kPowerOfTwo), "power_of_two");
  EXPECT_EQ(name(ScaleRounding::kNone), "none");
  EXPECT_EQ(name(MxRounding::kFloor), "floor");
  EXPECT_EQ(name(MxRounding::kRceil), "rceil");
}

}  // namespace
}  // namespace octavo
