#include "octavo/train/rng.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <set>

namespace octavo::train {
namespace {

TEST(Rng, GivesTheSameBitsOnEveryMachine) {
  // SplitMix64's first output for state 0 is 0xE220A8397B1DCDAF (Vigna's reference code).
  EXPECT_EQ(random_bits(0, {}), 0xE220A8397B1DCDAFu);
  // Pinned: a change of these would change the data order of every run.
  EXPECT_EQ(random_bits(1, {2, 3}), 0xD0734750FDE362B3u);
  EXPECT_EQ(random_below(1000, 5, {1, 2}), 233u);
  EXPECT_NE(random_bits(1, {2, 3, 4}), random_bits(1, {2, 4, 3}));
  EXPECT_NE(random_bits(1, {2}), random_bits(2, {1}));
  EXPECT_NE(random_bits(1, {0}), random_bits(1, {0, 0}));
}

TEST(Rng, StaysBelowTheBoundAndReachesEveryValue) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const std::uint64_t value = random_below(7, 5, {i});
    ASSERT_LT(value, 7u);
    seen.insert(value);
  }
  EXPECT_EQ(seen.size(), 7u);
  EXPECT_EQ(random_below(1, 5, {9}), 0u);
  EXPECT_THROW(random_below(0, 5, {9}), c10::Error);
}

TEST(Rng, IsUniform) {
  // 64 cells, 64000 draws: each expects 1000 with a deviation of 32; six of them is 190.
  std::vector<int> counts(64, 0);
  for (std::uint64_t i = 0; i < 64000; ++i) ++counts[random_below(64, 3, {i / 8, 0, i % 8})];
  for (int count : counts) EXPECT_NEAR(count, 1000, 190);
}

TEST(Rng, RestoresTheGenerator) {
  torch::manual_seed(7);
  torch::rand({5});
  const at::Tensor state = rng_state();
  const at::Tensor first = torch::randn({100});
  torch::randn({33});
  set_rng_state(state);
  EXPECT_TRUE(torch::equal(torch::randn({100}), first));
}

}  // namespace
}  // namespace octavo::train
