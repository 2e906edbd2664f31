#pragma once

#include <cstdint>

#include "octavo/train/config.h"
#include "octavo/train/safetensors.h"
#include "octavo/train/train_step.h"

// Errors of a training that went wrong, each with what to do about it. Which checkpoint is still
// good nobody knows: parameters can be ruined long before a number is not finite.
namespace octavo::train {

/// An error where the loss or the gradient norm of the step that ends at `step` is not finite.
void check_finite(const StepFigures& figures, const TrainConfig& config, std::int64_t step);

/// An error where the parameters' norm in fp32 is not finite after `step`: the model's own sums of
/// squares overflow too then, and its loss can be a number that means nothing (RMSNorm makes zeros
/// of what is infinite).
void check_finite(const NamedTensors& parameters, const TrainConfig& config, std::int64_t step);

/// An error where a validation loss after `step` is not finite.
void check_validation_loss(double loss, const TrainConfig& config, std::int64_t step);

}  // namespace octavo::train
