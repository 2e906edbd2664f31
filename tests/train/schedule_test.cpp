#include "octavo/train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace octavo::train {
namespace {

constexpr Schedule kSchedule{.lr = 4e-3, .min_lr_fraction = 0.1, .warmup_steps = 4, .steps = 12};

TEST(Schedule, WarmsUpLinearlyAndReachesLrAtTheLastWarmUpStep) {
  EXPECT_DOUBLE_EQ(kSchedule.at(0), 1e-3);
  EXPECT_DOUBLE_EQ(kSchedule.at(1), 2e-3);
  EXPECT_DOUBLE_EQ(kSchedule.at(2), 3e-3);
  EXPECT_DOUBLE_EQ(kSchedule.at(3), 4e-3);
}

TEST(Schedule, FallsAlongACosineToTheMinimumAtTheLastStep) {
  // Half way (4 of 8 steps after the warm-up): the mean of lr and lr / 10.
  EXPECT_DOUBLE_EQ(kSchedule.at(7), 2.2e-3);
  // A quarter of the way: 0.4e-3 + 3.6e-3 (1 + cos(pi/4)) / 2.
  EXPECT_DOUBLE_EQ(kSchedule.at(5), 0.4e-3 + 1.8e-3 * (1.0 + std::sqrt(0.5)));
  EXPECT_DOUBLE_EQ(kSchedule.at(11), 0.4e-3);
  for (int step = 4; step < 12; ++step) EXPECT_LT(kSchedule.at(step), kSchedule.at(step - 1));
}

TEST(Schedule, StaysAtTheMinimumPastTheEnd) { EXPECT_DOUBLE_EQ(kSchedule.at(100), 0.4e-3); }

TEST(Schedule, NeedsNoWarmUpAndNoDecay) {
  Schedule schedule = kSchedule;
  schedule.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(schedule.at(11), 0.4e-3);
  EXPECT_DOUBLE_EQ(schedule.at(5), 2.2e-3);
  schedule = {.lr = 1.0, .min_lr_fraction = 0.1, .warmup_steps = 5, .steps = 5};
  EXPECT_DOUBLE_EQ(schedule.at(4), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(5), 1.0);
  schedule.steps = 3;  // a run that ends while warming up
  EXPECT_DOUBLE_EQ(schedule.at(2), 0.6);
}

}  // namespace
}  // namespace octavo::train
