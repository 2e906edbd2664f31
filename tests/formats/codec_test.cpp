#include "octavo/formats/codec.h"

#include <gtest/gtest.h>

#include "octavo/formats/scaling.h"

namespace octavo {
namespace {

static_assert(encode(Format::kE4M3FN, 464.0f) == 0x7E);
static_assert(encode(Format::kE5M2, 61440.0f, Overflow::kNonFinite) == 0x7C);
static_assert(mx_code_of(448.0001f, Format::kE4M3FN, MxRounding::kRceil) == 128);
static_assert(mx_code_of(448.0001f, Format::kE4M3FN, MxRounding::kFloor) == 127);

TEST(Codec, EveryByteSurvivesARoundTrip) {
  for (Format format : kAllFormats) {
    for (int byte = 0; byte < 256; ++byte) {
      const float value = decode(format, static_cast<std::uint8_t>(byte));
      if (value != value) continue;
      EXPECT_EQ(encode(format, value, Overflow::kNonFinite), byte) << name(format);
    }
  }
}

}  // namespace
}  // namespace octavo
