#include "octavo/formats/format.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/formats/reference.h"

namespace octavo {
namespace {

static_assert(limits(Format::kE4M3FN).max == 448.0f);
static_assert(format_of(Element::kE5M2, Flavour::kFNUZ) == Format::kE5M2FNUZ);

TEST(Format, LimitsAreThoseOfTheSpecifications) {
  for (const reference::Spec& spec : reference::kSpecs) {
    SCOPED_TRACE(spec.name);
    const FormatLimits f = limits(spec.format);
    EXPECT_EQ(name(spec.format), spec.name);
    EXPECT_EQ(f.exponent_bits, 7 - spec.mantissa_bits);
    EXPECT_EQ(f.mantissa_bits, spec.mantissa_bits);
    EXPECT_EQ(f.bias, spec.bias);
    EXPECT_EQ(f.max_byte, spec.finite_count - 1);
    EXPECT_EQ(f.max, reference::decode(spec, spec.finite_count - 1));
    EXPECT_EQ(f.max_exponent, std::ilogb(f.max));
    EXPECT_TRUE(std::isnan(reference::decode(spec, f.nan_byte)));
    EXPECT_EQ(f.has_infinity, spec.infinity);
    EXPECT_EQ(f.has_negative_zero, !spec.fnuz);
  }
}

TEST(Format, FlavourAndElementAreAFormat) {
  for (Format format : kAllFormats) {
    EXPECT_EQ(format_of(element_of(format), flavour_of(format)), format) << name(format);
  }
  EXPECT_EQ(flavour_of(Format::kE4M3FN), Flavour::kOCP);
  EXPECT_EQ(flavour_of(Format::kE5M2FNUZ), Flavour::kFNUZ);
  EXPECT_EQ(name(Flavour::kOCP), "ocp");
  EXPECT_EQ(name(Flavour::kFNUZ), "fnuz");
  EXPECT_EQ(name(Element::kE4M3), "e4m3");
  EXPECT_EQ(name(Element::kE5M2), "e5m2");
}

}  // namespace
}  // namespace octavo
