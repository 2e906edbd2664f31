#include "octavo/kernels/cpu/adamw.h"

#include <gtest/gtest.h>

#include "tests/kernels/adamw_reference.h"
#include "tests/kernels/each_target.h"

namespace octavo::kernels {
namespace {

using testing::AdamwCase;

AdamwFactors host_factors(const AdamwOptions& options, AdamwCase& c, double lr, float clip) {
  return adamw_factors<HostArithmetic>(options, c.weight_decay, lr, c.step, clip);
}

TEST(Adamw, EqualsAScalarLoopOnEveryInstructionSet) {
  unsigned seed = 0;
  for (const AdamwTypes& types : testing::all_adamw_types()) {
    for (std::size_t size : {0, 1, 7, 8, 16, 17, 33, 255, 1000}) {
      for (float step : {1.0f, 2.0f, 1000.0f}) {
        const bool finite = ++seed % 2;
        const AdamwCase before(types, size, finite, seed);
        const double lr = 1e-3 * (seed % 7);
        const float clip = seed % 3 ? 1.0f : 0.37f;
        AdamwCase want = before;
        want.step = step;
        want.reference({}, lr, clip);
        for_each_target([&](const std::string& target) {
          AdamwCase got = before;
          got.step = step;
          adamw(got.tensor(), types, host_factors({}, got, lr, clip), 0, size);
          EXPECT_EQ(got.difference(want), "")
              << target << ", " << testing::describe(types) << ", " << size << " elements";
        });
      }
    }
  }
}

TEST(Adamw, WritesOnlyItsRangeAndSplitsDoNotMatter) {
  for (const AdamwTypes& types : testing::all_adamw_types()) {
    AdamwCase whole(types, 100, true, 3), parts = whole;
    const AdamwFactors factors = host_factors({}, whole, 1e-2, 1.0f);
    adamw(whole.tensor(), types, factors, 0, 100);
    const AdamwCase untouched = parts;
    adamw(parts.tensor(), types, factors, 40, 59);
    for (std::size_t i = 0; i < 100; ++i) {
      const AdamwCase& expected = i >= 40 && i < 59 ? whole : untouched;
      ASSERT_EQ(parts.parameter.bits(i), expected.parameter.bits(i)) << i;
      ASSERT_EQ(parts.exp_avg_sq.bits(i), expected.exp_avg_sq.bits(i)) << i;
    }
    adamw(parts.tensor(), types, factors, 0, 40);
    adamw(parts.tensor(), types, factors, 59, 100);
    EXPECT_EQ(parts.difference(whole), "") << testing::describe(types);
  }
}

TEST(Adamw, BetaOneBelowAHalfIsMeasuredFromTheGradient) {
  AdamwCase c({}, 64, true, 5);
  const AdamwCase before = c;
  adamw(c.tensor(), {}, host_factors({.beta1 = 0.0}, c, 1e-3, 1.0f), 0, 64);
  // beta1 = 0 has no memory: the moment is the gradient, exactly.
  EXPECT_EQ(c.exp_avg.difference(before.gradient), -1);
  AdamwCase got = before, want = before;
  adamw(got.tensor(), {}, host_factors({.beta1 = 0.3}, got, 1e-3, 1.0f), 0, 64);
  want.reference({.beta1 = 0.3}, 1e-3, 1.0f);
  EXPECT_EQ(got.difference(want), "");
}

TEST(Adamw, NaNGoesThroughAndStaysInItsElement) {
  for (const AdamwTypes& types : testing::all_adamw_types()) {
    AdamwCase c(types, 32, true, 7), clean = c;
    c.gradient.set(11, std::nanf(""));
    const AdamwFactors factors = host_factors({}, c, 1e-3, 1.0f);
    adamw(c.tensor(), types, factors, 0, 32);
    adamw(clean.tensor(), types, factors, 0, 32);
    for (std::size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(std::isnan(c.parameter.at(i)), i == 11) << i;
      EXPECT_EQ(std::isnan(c.exp_avg.at(i)) && std::isnan(c.exp_avg_sq.at(i)), i == 11) << i;
      EXPECT_TRUE(i == 11 || c.parameter.bits(i) == clean.parameter.bits(i)) << i;
    }
    EXPECT_EQ(types.has_master, types.has_master && std::isnan(c.master.at(11)));
  }
}

TEST(Adamw, AClipOfNaNTakesNoStep) {
  for (const AdamwTypes& types : testing::all_adamw_types()) {
    AdamwCase c(types, 37, true, 9);
    const AdamwCase before = c;
    adamw(c.tensor(), types, host_factors({}, c, 1e-3, std::nanf("")), 0, 37);
    EXPECT_EQ(c.difference(before), "") << testing::describe(types);
  }
}

TEST(Adamw, PowersBySquaringAreThePowers) {
  for (double beta : {0.0, 0.5, 0.9, 0.95, 0.999}) {
    for (std::int64_t t : {0, 1, 2, 3, 10, 1000, 16777216}) {
      const double want = std::pow(beta, static_cast<double>(t));
      // 2 log2(t) roundings, each doubled by the squarings after it: t 2^-53 at worst.
      EXPECT_TRUE(std::abs(adamw_power<HostArithmetic>(beta, t) - want) <=
                  want * 1.2e-16 * (1.0 + t))
          << beta << "^" << t;
    }
  }
}

TEST(Adamw, RoundsToBFloat16AsTheReference) {
  // Every bf16 and the fp32 values around the middle of it and its neighbour.
  for (std::uint32_t high = 0; high < 65536; ++high) {
    for (std::uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const float x = std::bit_cast<float>(high << 16 | low);
      testing::Elements e(HighPrecision::kBFloat16, {x});
      ASSERT_EQ(bfloat16_bits(x), e.bits(0)) << high << " " << low;
    }
  }
}

}  // namespace
}  // namespace octavo::kernels
