#include "octavo/train/schedule.h"

#include <algorithm>
#include <cmath>

namespace octavo::train {

Schedule Schedule::of(const TrainConfig& config) {
  return {.lr = config.lr,
          .min_lr_fraction = config.min_lr_fraction,
          .warmup_steps = config.warmup_steps,
          .steps = config.steps};
}

double Schedule::at(std::int64_t step) const {
  if (step < warmup_steps) {
    return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  const std::int64_t decay_steps = steps - warmup_steps;
  if (decay_steps <= 0) return lr;
  const double progress = std::min(
      1.0, static_cast<double>(step + 1 - warmup_steps) / static_cast<double>(decay_steps));
  return lr * (min_lr_fraction + (1.0 - min_lr_fraction) * 0.5 * (1.0 + std::cos(M_PI * progress)));
}

}  // namespace octavo::train
