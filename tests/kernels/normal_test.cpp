#include "octavo/kernels/normal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "octavo/kernels/cpu/normal.h"
#include "octavo/kernels/host_arithmetic.h"

namespace octavo::kernels {
namespace {

// Random123's known answers (kat_vectors): counter, key, result.
TEST(Normal, PhiloxGivesTheKnownAnswers) {
  const PhiloxWords zeros = philox(0, 0, 0);
  const std::uint32_t of_zeros[] = {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u};
  const PhiloxWords ones = philox(~0ull, ~0ull, ~0ull);
  const std::uint32_t of_ones[] = {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu};
  const PhiloxWords pi =
      philox(0x299f31d0a4093822ull, 0x0370734413198a2eull, 0x85a308d3243f6a88ull);
  const std::uint32_t of_pi[] = {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(zeros.word[i], of_zeros[i]) << i;
    EXPECT_EQ(ones.word[i], of_ones[i]) << i;
    EXPECT_EQ(pi.word[i], of_pi[i]) << i;
  }
}

// erfc() is an independent way back from z to the probability.
TEST(Normal, TheQuantileInvertsTheDistribution) {
  const auto check = [](std::uint32_t word) {
    const double p = (word + 0.5) / 4294967296.0;
    const double z = normal_quantile<HostArithmetic>(word);
    // From the nearer tail, where erfc() has all its digits.
    const double tail = 0.5 * std::erfc(std::abs(z) / std::sqrt(2.0));
    EXPECT_TRUE((z < 0) == (p < 0.5)) << word;
    // The tail changes by about z^2 times a relative error of z: 36 roundings of 2^-53 at the ends
    // for each that z and erfc() have, of which there are a few. 2.2e-14 is reached.
    EXPECT_TRUE(std::abs(tail / std::min(p, 1.0 - p) - 1.0) <= 5e-14)
        << word << ": " << z << ", " << tail / std::min(p, 1.0 - p) - 1.0;
  };
  for (std::uint32_t word = 0; word < 2000; ++word) {
    check(word);
    check(~word);
  }
  // Both sides of the change of formula at 0.075 and 0.925, and all over.
  for (const double p : {0.075, 0.925, 0.5}) {
    const auto middle = static_cast<std::uint32_t>(p * 4294967296.0);
    for (std::uint32_t d = 0; d < 200; ++d) check(middle - 100 + d);
  }
  for (std::uint64_t word = 0; word < 4294967296u; word += 65521) {
    check(static_cast<std::uint32_t>(word));
  }
}

TEST(Normal, IsMonotoneAndOdd) {
  double before = -7.0;
  for (std::uint64_t word = 0; word < 4294967296u; word += 40961) {
    const auto w = static_cast<std::uint32_t>(word);
    const double z = normal_quantile<HostArithmetic>(w);
    EXPECT_GT(z, before) << w;
    EXPECT_EQ(normal_quantile<HostArithmetic>(~w), -z) << w;
    before = z;
  }
}

TEST(Normal, ARangeIsPartOfTheWhole) {
  const NormalSource source{.seed = 3, .stream = 5, .deviation = 0.02};
  constexpr std::int64_t kSize = 103;
  std::vector<float> whole(kSize), parts(kSize, 9.0f);
  fill_normal(source, HighPrecision::kFloat32, whole.data(), 0, kSize);
  fill_normal(source, HighPrecision::kFloat32, parts.data(), 7, 58);
  for (std::int64_t i = 0; i < kSize; ++i) {
    EXPECT_EQ(parts[i], i >= 7 && i < 58 ? whole[i] : 9.0f) << i;
  }
  fill_normal(source, HighPrecision::kFloat32, parts.data(), 0, 7);
  fill_normal(source, HighPrecision::kFloat32, parts.data(), 58, kSize);
  fill_normal(source, HighPrecision::kFloat32, parts.data(), 20, 20);
  EXPECT_EQ(parts, whole);

  std::vector<std::uint16_t> rounded(kSize);
  fill_normal(source, HighPrecision::kBFloat16, rounded.data(), 0, kSize);
  for (std::int64_t i = 0; i < kSize; ++i) EXPECT_EQ(rounded[i], bfloat16_bits(whole[i])) << i;
}

TEST(Normal, SeedsAndStreamsDifferAndMomentsAreANormals) {
  constexpr std::int64_t kSize = 200000;
  const auto make = [](std::uint64_t seed, std::uint64_t stream) {
    std::vector<float> x(kSize);
    fill_normal({.seed = seed, .stream = stream, .deviation = 2.0}, HighPrecision::kFloat32,
                x.data(), 0, kSize);
    return x;
  };
  const std::vector<float> a = make(1, 1), b = make(2, 1), c = make(1, 2);
  double sum = 0, square = 0, fourth = 0, with_b = 0, with_c = 0, neighbours = 0;
  for (std::int64_t i = 0; i < kSize; ++i) {
    const double x = a[i] / 2.0;
    sum += x;
    square += x * x;
    fourth += x * x * x * x;
    with_b += x * b[i] / 2.0;
    with_c += x * c[i] / 2.0;
    neighbours += x * a[(i + 1) % kSize] / 2.0;
  }
  // Five deviations of each mean: x has variance 1, x^2 2, x^4 96, a product of two 1.
  const double root = std::sqrt(double(kSize));
  EXPECT_TRUE(std::abs(sum / kSize) <= 5 / root);
  EXPECT_TRUE(std::abs(square / kSize - 1.0) <= 5 * std::sqrt(2.0) / root);
  EXPECT_TRUE(std::abs(fourth / kSize - 3.0) <= 5 * std::sqrt(96.0) / root);
  for (const double product : {with_b, with_c, neighbours}) {
    EXPECT_TRUE(std::abs(product / kSize) <= 5 / root) << product;
  }
}

}  // namespace
}  // namespace octavo::kernels
