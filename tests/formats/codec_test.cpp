#include "octavo/formats/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/formats/reference.h"

namespace octavo {
namespace {

using reference::Encoder;
using reference::Spec;

constexpr Overflow kBothModes[] = {Overflow::kSaturate, Overflow::kNonFinite};

// Constant expressions: the codecs must stay usable at compile time.
static_assert(encode(Format::kE4M3FN, 464.0f) == 0x7E);
static_assert(encode(Format::kE4M3FN, kNaN) == 0x7F);
static_assert(decode(Format::kE4M3FN, 0x7E) == 448.0f);
static_assert(decode(Format::kE5M2, 0xFC) == -kInf);
static_assert(decode(Format::kE4M3FNUZ, 0x80) != decode(Format::kE4M3FNUZ, 0x80));

class CodecTest : public ::testing::TestWithParam<Spec> {};
INSTANTIATE_TEST_SUITE_P(Formats, CodecTest, ::testing::ValuesIn(reference::kSpecs),
                         [](const auto& info) { return std::string(info.param.name); });

std::uint32_t bits(float x) { return internal::bits_of(x); }

TEST_P(CodecTest, EveryByteDecodesToItsValue) {
  const Spec spec = GetParam();
  int nans = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const double expected = reference::decode(spec, byte);
    const float got = decode(spec.format, static_cast<std::uint8_t>(byte));
    if (std::isnan(expected)) {
      ++nans;
      EXPECT_EQ(bits(got), 0x7FC00000u) << "byte " << byte << " is NaN, got " << got;
      continue;
    }
    EXPECT_EQ(static_cast<double>(got), expected) << "byte " << byte;
    EXPECT_EQ(std::signbit(got), std::signbit(expected)) << "byte " << byte;
  }
  EXPECT_EQ(nans, spec.fnuz ? 1 : (spec.infinity ? 6 : 2));
}

TEST_P(CodecTest, EveryByteSurvivesARoundTrip) {
  const Spec spec = GetParam();
  for (int byte = 0; byte < 256; ++byte) {
    const float value = decode(spec.format, static_cast<std::uint8_t>(byte));
    if (std::isnan(value)) continue;
    EXPECT_EQ(encode(spec.format, value, Overflow::kNonFinite), byte);
    if (std::isinf(value)) continue;
    EXPECT_EQ(encode(spec.format, value, Overflow::kSaturate), byte);
  }
}

// Every place where the result changes: the midpoint between two neighbours (a tie) and the fp32
// numbers next to it, with the bytes written down from the position, not from the reference.
TEST_P(CodecTest, EveryRoundingBoundary) {
  const Spec spec = GetParam();
  const Encoder encoder(spec);
  const auto& midpoints = encoder.midpoints();
  ASSERT_EQ(static_cast<int>(midpoints.size()), spec.finite_count);
  for (Overflow overflow : kBothModes) {
    const bool saturate = overflow == Overflow::kSaturate;
    // The byte of the i-th value, and what lies past the last.
    auto positive = [&](int i) {
      if (i < spec.finite_count) return i;
      if (saturate) return spec.finite_count - 1;
      return spec.fnuz ? 0x80 : 0x7F - (spec.infinity ? 3 : 0);
    };
    auto negative = [&](int i) {
      const int byte = positive(i);
      if (byte == 0x80 || (byte == 0 && spec.fnuz)) return byte;
      if (!saturate && !spec.infinity && i >= spec.finite_count) return byte;  // NaN: no sign
      return byte | 0x80;
    };
    for (int i = 0; i < spec.finite_count; ++i) {
      const float tie = static_cast<float>(midpoints[i]);
      ASSERT_EQ(static_cast<double>(tie), midpoints[i]);
      const float below = std::nextafter(tie, 0.0f);
      const float above = std::nextafter(tie, kInf);
      const int even = i % 2 == 0 ? i : i + 1;
      EXPECT_EQ(encode(spec.format, below, overflow), positive(i)) << below;
      EXPECT_EQ(encode(spec.format, tie, overflow), positive(even)) << tie;
      EXPECT_EQ(encode(spec.format, above, overflow), positive(i + 1)) << above;
      EXPECT_EQ(encode(spec.format, -below, overflow), negative(i)) << -below;
      EXPECT_EQ(encode(spec.format, -tie, overflow), negative(even)) << -tie;
      EXPECT_EQ(encode(spec.format, -above, overflow), negative(i + 1)) << -above;
    }
  }
}

TEST_P(CodecTest, NonFiniteInputs) {
  const Spec spec = GetParam();
  const int nan_byte = spec.fnuz ? 0x80 : 0x7F;
  const int max_byte = spec.finite_count - 1;
  for (std::uint32_t pattern : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu, 0x7FBFFFFFu}) {
    for (Overflow overflow : kBothModes) {
      EXPECT_EQ(encode(spec.format, internal::float_of(pattern), overflow), nan_byte) << pattern;
    }
  }
  for (float huge : {kInf, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(encode(spec.format, huge, Overflow::kSaturate), max_byte);
    EXPECT_EQ(encode(spec.format, -huge, Overflow::kSaturate), max_byte | 0x80);
    EXPECT_EQ(encode(spec.format, huge, Overflow::kNonFinite), spec.infinity ? 0x7C : nan_byte);
    EXPECT_EQ(encode(spec.format, -huge, Overflow::kNonFinite), spec.infinity ? 0xFC : nan_byte);
  }
}

TEST_P(CodecTest, ZeroAndTheSmallestInputs) {
  const Spec spec = GetParam();
  const int negative_zero = spec.fnuz ? 0x00 : 0x80;
  for (std::uint32_t pattern : {0u, 1u, 0x007FFFFFu, 0x00800000u}) {  // 0 and fp32 subnormals
    const float x = internal::float_of(pattern);
    EXPECT_EQ(encode(spec.format, x), 0x00) << pattern;
    EXPECT_EQ(encode(spec.format, -x), negative_zero) << pattern;
  }
}

void expect_same_bytes(const Spec& spec, const Encoder& encoder, std::uint32_t pattern) {
  const float x = internal::float_of(pattern);
  for (Overflow overflow : kBothModes) {
    // ASSERT_EQ in the failing case only: formatting 20 million messages takes a minute.
    const int got = encode(spec.format, x, overflow);
    const int expected = encoder(x, overflow);
    if (got != expected) {
      ASSERT_EQ(got, expected) << spec.name << " of " << x << ", bits 0x" << std::hex << pattern;
    }
  }
}

// Inputs a bf16 or fp16 tensor can hold, all of them.
TEST_P(CodecTest, EveryBf16AndFp16Input) {
  const Spec spec = GetParam();
  const Encoder encoder(spec);
  for (std::uint32_t half = 0; half < 65536; ++half) {
    ASSERT_NO_FATAL_FAILURE(expect_same_bytes(spec, encoder, half << 16));
    // fp16 by its definition: sign, 5 exponent bits of bias 15, 10 mantissa bits.
    const int exponent = static_cast<int>(half >> 10 & 31);
    const int mantissa = static_cast<int>(half & 1023);
    float x = exponent == 31  ? (mantissa ? kNaN : kInf)
              : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                              : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
    if (half >> 15) x = -x;
    ASSERT_NO_FATAL_FAILURE(expect_same_bytes(spec, encoder, bits(x)));
  }
}

TEST_P(CodecTest, TenMillionRandomFp32Inputs) {
  const Spec spec = GetParam();
  const Encoder encoder(spec);
  std::mt19937 random(20240607);
  for (int i = 0; i < 5'000'000; ++i) {
    const auto pattern = static_cast<std::uint32_t>(random());
    ASSERT_NO_FATAL_FAILURE(expect_same_bytes(spec, encoder, pattern));
    // The same mantissa and sign with an exponent around the format's range, 2^-20 .. 2^19.
    const std::uint32_t exponent = 107 + (pattern >> 23) % 40;
    ASSERT_NO_FATAL_FAILURE(
        expect_same_bytes(spec, encoder, (pattern & 0x807FFFFFu) | exponent << 23));
  }
}

// tests/field_cases.md, "Formats and casts": values that broke other libraries.
TEST(CodecFieldCases, E4M3FNTop) {
  constexpr Format f = Format::kE4M3FN;
  EXPECT_EQ(encode(f, 448.0f), 0x7E);
  EXPECT_EQ(encode(f, 464.0f), 0x7E);
  EXPECT_EQ(encode(f, 464.0f, Overflow::kNonFinite), 0x7E);
  for (float x : {464.00003f, 480.0f, 1000.0f}) {
    EXPECT_EQ(encode(f, x), 0x7E) << x;
    EXPECT_EQ(encode(f, x, Overflow::kNonFinite), 0x7F) << x;
  }
  EXPECT_EQ(encode(f, -1000.0f), 0xFE);
  EXPECT_EQ(encode(f, kInf), 0x7E);
  EXPECT_EQ(encode(f, -kInf), 0xFE);
}

TEST(CodecFieldCases, E5M2Top) {
  constexpr Format f = Format::kE5M2;
  EXPECT_EQ(encode(f, 61439.996f), 0x7B);
  EXPECT_EQ(encode(f, 61439.996f, Overflow::kNonFinite), 0x7B);
  EXPECT_EQ(decode(f, 0x7B), 57344.0f);
  EXPECT_EQ(encode(f, 61440.0f, Overflow::kNonFinite), 0x7C);
  EXPECT_EQ(encode(f, 61440.0f), 0x7B);
}

TEST(CodecFieldCases, FnuzHasNoNegativeZero) {
  EXPECT_EQ(encode(Format::kE4M3FNUZ, -0.0f), 0x00);
  EXPECT_EQ(encode(Format::kE4M3FNUZ, -1e-8f), 0x00);
  EXPECT_EQ(encode(Format::kE4M3FNUZ, -0x1p-11f), 0x00);
  EXPECT_EQ(encode(Format::kE4M3FNUZ, std::nextafter(-0x1p-11f, -1.0f)), 0x81);
  EXPECT_EQ(encode(Format::kE5M2FNUZ, -0x1p-18f), 0x00);
  EXPECT_EQ(encode(Format::kE5M2FNUZ, -1e-5f), 0x81);
  EXPECT_TRUE(std::isnan(decode(Format::kE4M3FNUZ, 0x80)));
  EXPECT_TRUE(std::isnan(decode(Format::kE5M2FNUZ, 0x80)));
}

TEST(CodecFieldCases, Subnormals) {
  EXPECT_EQ(encode(Format::kE4M3FN, 0x1p-10f), 0x00);
  EXPECT_EQ(encode(Format::kE4M3FN, std::nextafter(0x1p-10f, 1.0f)), 0x01);
  EXPECT_EQ(encode(Format::kE4M3FN, 0x3p-10f), 0x02);
  EXPECT_EQ(encode(Format::kE4M3FN, 7.5f * 0x1p-9f), 0x08);
  EXPECT_EQ(encode(Format::kE5M2, 0x1p-17f), 0x00);
  EXPECT_EQ(encode(Format::kE5M2, 0x3p-17f), 0x02);
}

TEST(CodecFieldCases, OneRoundingFromFp32) {
  EXPECT_EQ(encode(Format::kE4M3FN, 1.0625001f), 0x39);
  EXPECT_EQ(decode(Format::kE4M3FN, 0x39), 1.125f);
  EXPECT_EQ(encode(Format::kE5M2, 1.1250001f), 0x3D);
  EXPECT_EQ(encode(Format::kE5M2, 1.125f), 0x3C);
}

}  // namespace
}  // namespace octavo
