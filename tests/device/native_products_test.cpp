#include "octavo/device/native_products.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>

namespace octavo {
namespace {

constexpr NativeProduct product(std::string_view architecture, ScalingFamily family,
                                Flavour flavour = Flavour::kOCP) {
  return native_product(parse_architecture(architecture), family, flavour);
}
static_assert(product("sm_90", ScalingFamily::kRowwise).backend == Backend::kCublasLt);

// The design's table, written out a second time: one line a product, one word a device.
TEST(NativeProducts, TheTable) {
  const char* devices[] = {"sm_90", "sm_100", "sm_89", "sm_80", "gfx942", "gfx950", "cpu"};
  const std::pair<ScalingFamily, std::array<const char*, 7>> table[] = {
      {ScalingFamily::kTensorwise,
       {"cublaslt", "cublaslt", "cublaslt", "emulated", "aten", "aten", "reference"}},
      {ScalingFamily::kRowwise,
       {"cublaslt", "aten", "aten", "emulated", "aten", "aten", "reference"}},
      {ScalingFamily::kBlockwise,
       {"cublaslt", "emulated", "emulated", "emulated", "emulated", "emulated", "reference"}},
      {ScalingFamily::kMx,
       {"emulated", "aten", "emulated", "emulated", "emulated", "aten", "reference"}},
  };
  for (const auto& [family, backends] : table) {
    for (std::size_t d = 0; d < backends.size(); ++d) {
      const Flavour flavour = parse_architecture(devices[d]).flavour;
      const NativeProduct got = product(devices[d], family, flavour);
      EXPECT_EQ(name(got.backend), backends[d]) << devices[d] << " " << name(family);
      EXPECT_FALSE(got.needs_probe) << devices[d] << " " << name(family);
    }
  }
}

TEST(NativeProducts, Sm120AsksFirst) {
  EXPECT_EQ(product("sm_120", ScalingFamily::kTensorwise), NativeProduct{Backend::kCublasLt});
  EXPECT_EQ(product("sm_120", ScalingFamily::kRowwise), (NativeProduct{Backend::kAten, true}));
  EXPECT_EQ(product("sm_120", ScalingFamily::kMx), (NativeProduct{Backend::kAten, true}));
  EXPECT_EQ(product("sm_120", ScalingFamily::kBlockwise), NativeProduct{Backend::kEmulated});
}

TEST(NativeProducts, TheOtherFlavourIsEmulatedOnGpus) {
  for (const Architecture& architecture : kArchitectures) {
    const Flavour other = architecture.flavour == Flavour::kOCP ? Flavour::kFNUZ : Flavour::kOCP;
    for (ScalingFamily family : kAllScalingFamilies) {
      const Backend expected =
          architecture.vendor == Vendor::kCPU ? Backend::kReference : Backend::kEmulated;
      EXPECT_EQ(native_product(architecture, family, other).backend, expected)
          << architecture.name << " " << name(family);
    }
  }
}

TEST(NativeProducts, WhatIsNotInTheTableIsEmulated) {
  for (const char* device : {"sm_86", "gfx908", "gfx90a", "gfx1100", "gfx1201", "sm_121"}) {
    for (ScalingFamily family : kAllScalingFamilies) {
      EXPECT_EQ(product(device, family), NativeProduct{Backend::kEmulated}) << device;
    }
  }
}

TEST(NativeProducts, GroupedProducts) {
  const auto grouped = [](const char* device, ScalingFamily family, Flavour flavour) {
    return native_grouped_product(parse_architecture(device), family, flavour).backend;
  };
  EXPECT_EQ(grouped("sm_90", ScalingFamily::kRowwise, Flavour::kOCP), Backend::kOctavo);
  EXPECT_EQ(grouped("sm_100", ScalingFamily::kRowwise, Flavour::kOCP), Backend::kAten);
  EXPECT_EQ(grouped("gfx942", ScalingFamily::kRowwise, Flavour::kFNUZ), Backend::kAten);
  EXPECT_EQ(grouped("gfx942", ScalingFamily::kRowwise, Flavour::kOCP), Backend::kEmulated);
  EXPECT_EQ(grouped("sm_90", ScalingFamily::kRowwise, Flavour::kFNUZ), Backend::kEmulated);
  EXPECT_EQ(grouped("sm_89", ScalingFamily::kRowwise, Flavour::kOCP), Backend::kEmulated);
  EXPECT_EQ(grouped("sm_90", ScalingFamily::kBlockwise, Flavour::kOCP), Backend::kOctavo);
  EXPECT_EQ(grouped("sm_90", ScalingFamily::kMx, Flavour::kOCP), Backend::kEmulated);
  EXPECT_EQ(grouped("sm_100", ScalingFamily::kMx, Flavour::kOCP), Backend::kAten);
  EXPECT_EQ(grouped("gfx950", ScalingFamily::kMx, Flavour::kOCP), Backend::kEmulated);
  EXPECT_EQ(grouped("sm_100", ScalingFamily::kBlockwise, Flavour::kOCP), Backend::kEmulated);
  for (const ScalingFamily family : kAllScalingFamilies) {
    EXPECT_EQ(grouped("cpu", family, Flavour::kOCP), Backend::kReference);
  }
}

TEST(NativeProducts, NativeMeansTensorCores) {
  EXPECT_TRUE(is_native(Backend::kCublasLt));
  EXPECT_TRUE(is_native(Backend::kOctavo));
  EXPECT_TRUE(is_native(Backend::kAten));
  EXPECT_FALSE(is_native(Backend::kReference));
  EXPECT_FALSE(is_native(Backend::kEmulated));
  EXPECT_EQ(name(Backend::kAuto), "auto");
  EXPECT_EQ(name(Backend::kEmulated), "emulated");
}

}  // namespace
}  // namespace octavo
