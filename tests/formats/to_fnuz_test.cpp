#include "octavo/formats/to_fnuz.h"

#include <gtest/gtest.h>

#include <cmath>

#include "octavo/formats/scaling.h"

namespace octavo {
namespace {

static_assert(fnuz_byte_of_ocp(Element::kE4M3, 0x80) == 0x00);

// data * scale is the same number on both sides, and the same kind of number.
TEST(ToFnuz, EveryByteKeepsItsValueWithTwiceTheScale) {
  for (Element element : {Element::kE4M3, Element::kE5M2}) {
    const Format ocp = format_of(element, Flavour::kOCP);
    const Format fnuz = format_of(element, Flavour::kFNUZ);
    for (float scale : {1.0f, 0.013392857f, 0x1p-100f, 3e30f}) {
      for (int b = 0; b < 256; ++b) {
        const auto byte = static_cast<std::uint8_t>(b);
        const float before = decode(ocp, byte);
        const float after = decode(fnuz, fnuz_byte_of_ocp(element, byte));
        if (!std::isfinite(before)) {
          EXPECT_TRUE(std::isnan(after)) << name(ocp) << " byte " << b;
          continue;
        }
        EXPECT_EQ(after * fnuz_scale_of_ocp(scale), before * scale) << name(ocp) << " byte " << b;
      }
    }
  }
}

// tests/field_cases.md, "Formats and casts".
TEST(ToFnuz, FieldCases) {
  for (int b = 0; b < 256; ++b) {
    const int expected = b == 0x80 ? 0x00 : (b & 0x7F) == 0x7F ? 0x80 : b;
    EXPECT_EQ(fnuz_byte_of_ocp(Element::kE4M3, static_cast<std::uint8_t>(b)), expected);
  }
  EXPECT_EQ(fnuz_scale_of_ocp(0.75f), 1.5f);
}

TEST(ToFnuz, E5M2InfinitiesBecomeNaN) {
  EXPECT_EQ(fnuz_byte_of_ocp(Element::kE5M2, 0x7C), 0x80);
  EXPECT_EQ(fnuz_byte_of_ocp(Element::kE5M2, 0xFC), 0x80);
  EXPECT_EQ(fnuz_byte_of_ocp(Element::kE5M2, 0x7B), 0x7B);
}

}  // namespace
}  // namespace octavo
