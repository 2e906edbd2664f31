#include "octavo/device/architecture.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

static_assert(parse_architecture("gfx942:sramecc+:xnack-").flavour == Flavour::kFNUZ);

// tests/field_cases.md, "Trainer and metrics".
TEST(Architecture, FieldCases) {
  EXPECT_EQ(parse_architecture("gfx942:sramecc+:xnack-").flavour, Flavour::kFNUZ);
  EXPECT_TRUE(parse_architecture("gfx942:sramecc+:xnack-").fp8_hardware);
  for (const char* name : {"gfx950", "gfx1200", "gfx1201", "sm_89", "sm_90", "sm_100", "sm_120"}) {
    EXPECT_EQ(parse_architecture(name).flavour, Flavour::kOCP) << name;
    EXPECT_TRUE(parse_architecture(name).fp8_hardware) << name;
  }
  EXPECT_FALSE(parse_architecture("gfx90a").fp8_hardware);
  EXPECT_FALSE(parse_architecture("gfx90a:sramecc+:xnack-").fp8_hardware);
}

TEST(Architecture, FnuzIsGfx940To942Only) {
  for (const Architecture& architecture : kArchitectures) {
    const bool fnuz = architecture.name.starts_with("gfx94");
    EXPECT_EQ(architecture.flavour == Flavour::kFNUZ, fnuz) << architecture.name;
  }
}

TEST(Architecture, Spellings) {
  for (const char* text : {"sm90", "sm_90", "sm_90a", "sm90a"}) {
    EXPECT_EQ(parse_architecture(text).name, "sm_90") << text;
  }
  EXPECT_EQ(parse_architecture("sm_100f").name, "sm_100");
  EXPECT_EQ(parse_architecture("gfx950:sramecc+").name, "gfx950");
  EXPECT_EQ(parse_architecture("cpu").name, "cpu");
}

TEST(Architecture, VendorsFollowNames) {
  for (const Architecture& architecture : kArchitectures) {
    EXPECT_EQ(parse_architecture(architecture.name).name, architecture.name);
    const Vendor vendor = architecture.name.starts_with("sm_")   ? Vendor::kNVIDIA
                          : architecture.name.starts_with("gfx") ? Vendor::kAMD
                                                                 : Vendor::kCPU;
    EXPECT_EQ(architecture.vendor, vendor) << architecture.name;
  }
  EXPECT_FALSE(parse_architecture("cpu").fp8_hardware);
  EXPECT_FALSE(parse_architecture("sm_80").fp8_hardware);
  EXPECT_EQ(name(Vendor::kNVIDIA), "nvidia");
}

TEST(Architecture, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  for (const char* text : {"", "sm", "sm_", "sm_9", "sm_900", "sm_90aa", "90", "gfx", "gfx94",
                           "gfx9420", "gfx942 ", ":gfx942", "GFX942", "cpua", "tpu"}) {
    try {
      parse_architecture(text);
      ADD_FAILURE() << "\"" << text << "\" was accepted";
    } catch (const std::invalid_argument& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(std::string("got \"") + text + "\""), std::string::npos) << message;
      EXPECT_NE(message.find("gfx942"), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace octavo
