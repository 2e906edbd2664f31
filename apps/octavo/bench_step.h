#pragma once

#include <optional>
#include <string>

#include "apps/octavo/command.h"

namespace octavo::app {

struct BenchStepOptions {
  ConfigOptions config;  ///< sizes, precision, device: keys of the trainer
  std::string recipes;   ///< a list; empty: tensorwise, rowwise and rowwise_with_gw_hp
  int rounds = 3;        ///< of all recipes in turn
  int steps = 5;         ///< timed in a round
  int warm_up = 2;       ///< steps before them in each round; one more in the first
  bool breakdown = false;
  bool unfused = false;             ///< each recipe a second time with `fusion` off
  std::optional<std::string> json;  ///< a file for the report; empty: standard output, no table
};

/// The trainer's own step (train::TrainStep: micro-batches, gradient norm and clipping, AdamW over
/// all parameters, the loss) in high precision and under each recipe, of one model in one process.
/// Recipes take turns, round by round, each at the clocks that its own steps lead to; a step's time
/// is the median of all timed ones, between events on the device. Tokens are random and the loss
/// stays near ln V.
///
/// Of each: milliseconds, tokens/s, ratio to high precision; the most memory there was; the floor
/// (step_work.h) and how near it is; MFU against the dense BF16 peak, and in a column of its own
/// against the mixed one. With `breakdown` the step's time by kind and its launches
/// (step_profile.h; the JSON holds every kernel). With `unfused` and `breakdown` also what fusion
/// recovers on a GPU: 1 - o / o', where o and o' are the seconds outside of products and attention
/// above those of high precision, fused and not. A recipe that the model cannot take, or that does
/// not fit the device's memory, is a line that says so. Errors: those of the keys, an unknown
/// recipe, a device that is not there.
void bench_step(const BenchStepOptions& options);

}  // namespace octavo::app
