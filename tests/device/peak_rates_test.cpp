#include "octavo/device/peak_rates.h"

#include <gtest/gtest.h>

#include <set>

namespace octavo {
namespace {

static_assert(peak_rates("NVIDIA H200")->bf16 == 989e12);
static_assert(!peak_rates("cpu").has_value());

// tests/field_cases.md, "Trainer and metrics": bf16.
TEST(PeakRates, FieldCases) {
  EXPECT_EQ(peak_rates("NVIDIA A100-SXM4-80GB")->bf16, 312e12);
  EXPECT_EQ(peak_rates("NVIDIA H100 80GB HBM3")->bf16, 989e12);
  EXPECT_EQ(peak_rates("NVIDIA H200")->bf16, 989e12);
  EXPECT_EQ(peak_rates("NVIDIA B200")->bf16, 2250e12);
  EXPECT_EQ(peak_rates("AMD Instinct MI300X")->bf16, 1300e12);
  EXPECT_EQ(peak_rates("AMD Instinct MI325X")->bf16, 1300e12);
  EXPECT_EQ(peak_rates("AMD Instinct MI355X")->bf16, 2500e12);
  EXPECT_EQ(peak_rates("NVIDIA H100 PCIe")->bf16, 756e12);
  EXPECT_EQ(peak_rates("NVIDIA H100 NVL")->bf16, 835e12);
  EXPECT_TRUE(peak_rates("AMD Instinct MI350X").has_value());
}

TEST(PeakRates, UnknownNamesGiveNone) {
  for (const char* product :
       {"", "cpu", "NVIDIA", "H100", "NVIDIA H100", "NVIDIA H100 80GB", "NVIDIA H1000",
        "nvidia h200", "NVIDIA H200 ", "AMD Instinct MI300"}) {
    EXPECT_FALSE(peak_rates(product).has_value()) << product;
  }
}

TEST(PeakRates, Fp8) {
  EXPECT_FALSE(peak_rates("NVIDIA A100-SXM4-40GB")->fp8.has_value());
  EXPECT_EQ(peak_rates("NVIDIA H200")->fp8, 1979e12);
  EXPECT_EQ(peak_rates("NVIDIA B200")->fp8, 4500e12);
  EXPECT_EQ(peak_rates("AMD Instinct MI300X")->fp8, 2614.9e12);
}

// A figure with sparsity, or one of another row, would break the ratio of two.
TEST(PeakRates, EveryRowIsDenseAndNamedOnce) {
  std::set<std::string_view> seen;
  for (const auto& row : internal::kProductPeakRates) {
    EXPECT_TRUE(seen.insert(row.product).second) << row.product;
    if (!row.rates.fp8) continue;
    const double ratio = *row.rates.fp8 / row.rates.bf16;
    // 2, except for what the data sheets' rounding leaves (1 in 100).
    EXPECT_TRUE(ratio > 1.98 && ratio < 2.03) << row.product << " " << ratio;
  }
}

}  // namespace
}  // namespace octavo
