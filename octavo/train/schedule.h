#pragma once

#include <cstdint>

#include "octavo/train/config.h"

namespace octavo::train {

/// Linear warm-up, then half a cosine.
struct Schedule {
  double lr = 0.0;
  double min_lr_fraction = 0.0;  ///< of lr, reached at the last step
  std::int64_t warmup_steps = 0;
  std::int64_t steps = 0;

  static Schedule of(const TrainConfig& config);

  /// The learning rate of the step with index `step` (0 is the first).
  ///   step < warmup_steps: lr (step + 1) / warmup_steps
  ///   otherwise:           lr (f + (1 - f) (1 + cos(pi p)) / 2),
  ///                        p = (step + 1 - warmup_steps) / (steps - warmup_steps), at most 1
  /// so warm-up ends at lr exactly and the last step has lr * min_lr_fraction exactly. Without
  /// steps after the warm-up the rate stays lr.
  double at(std::int64_t step) const;
};

}  // namespace octavo::train
