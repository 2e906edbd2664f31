#include "octavo/formats/e8m0.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/formats/reference.h"

namespace octavo {
namespace {

static_assert(decode_e8m0(134) == 128.0f);
static_assert(encode_e8m0_nearest(1.5f) == 128);
static_assert(inv_scale_e8m0(134) == 0x1p-7f);

TEST(E8M0, EveryCodeIsItsPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const auto c = static_cast<std::uint8_t>(code);
    EXPECT_EQ(static_cast<double>(decode_e8m0(c)), std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(static_cast<double>(inv_scale_e8m0(c)), std::ldexp(1.0, 127 - code)) << code;
    EXPECT_EQ(encode_e8m0_nearest(decode_e8m0(c)), code);
  }
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
  EXPECT_TRUE(std::isnan(inv_scale_e8m0(255)));
}

// tests/field_cases.md, "Formats and casts".
TEST(E8M0, FieldCases) {
  EXPECT_EQ(internal::bits_of(decode_e8m0(0)), 0x00400000u);
  EXPECT_EQ(decode_e8m0(134), 128.0f);
  EXPECT_EQ(encode_e8m0_nearest(1.25f), 127);
  EXPECT_EQ(encode_e8m0_nearest(1.5f), 128);
  EXPECT_EQ(encode_e8m0_nearest(3.0f), 129);
  EXPECT_EQ(encode_e8m0_nearest(kNaN), 255);
}

// Between two codes: up from 1.5 times the lower one.
TEST(E8M0, EveryRoundingBoundary) {
  for (int code = 1; code < 255; ++code) {
    const float tie = 1.5f * decode_e8m0(static_cast<std::uint8_t>(code));
    EXPECT_EQ(encode_e8m0_nearest(std::nextafter(tie, 0.0f)), code);
    EXPECT_EQ(encode_e8m0_nearest(tie), code + 1);
    EXPECT_EQ(encode_e8m0_nearest(std::nextafter(tie, kInf)), code + 1);
    EXPECT_EQ(encode_e8m0_nearest(-tie), code + 1);
  }
}

TEST(E8M0, TheEndsOfTheRange) {
  EXPECT_EQ(encode_e8m0_nearest(0.0f), 0);
  EXPECT_EQ(encode_e8m0_nearest(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(encode_e8m0_nearest(0x1p-127f), 0);
  EXPECT_EQ(encode_e8m0_nearest(std::nextafter(0x1p-127f, 1.0f)), 1);
  EXPECT_EQ(encode_e8m0_nearest(0x1p127f), 254);
  EXPECT_EQ(encode_e8m0_nearest(std::numeric_limits<float>::max()), 255);
  EXPECT_EQ(encode_e8m0_nearest(kInf), 255);
  EXPECT_EQ(encode_e8m0_nearest(-kInf), 255);
}

}  // namespace
}  // namespace octavo
