#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "octavo/nn/weight_amax.h"
#include "octavo/train/config.h"
#include "octavo/train/safetensors.h"

namespace octavo::train {

/// `named` without the second and later names of a tensor (tied weights are registered under two).
/// The first name stays; the order is kept.
NamedTensors deduplicate(const NamedTensors& named);

/// AdamW, by the formula and in the order of operations of kernels/adamw.h. weight_decay is for
/// matrices (dim >= 2); norms and biases have none.
///
/// Parameters: fp32 or bf16, contiguous, on one device; gradients: fp32 or bf16, whatever the
/// parameter is. With master_weights a bf16 parameter has a master, its value in fp32, and fp32
/// moments: the master takes the step and the parameter is the master rounded once. Otherwise the
/// moments have the parameter's dtype. A parameter that requires no gradient, or has none, is left
/// alone. A tensor given twice is stepped once. Learning rate, steps and the clipping factor are
/// tensors on the parameters' device: a step waits for nothing.
class AdamW {
 public:
  struct Options {
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    bool master_weights = false;

    static Options of(const TrainConfig& config);
  };
  /// Errors: no parameter that requires a gradient, another dtype, not contiguous, two devices.
  AdamW(const NamedTensors& parameters, const Options& options);

  /// What the next steps take. Not part of a captured graph: set it before each replay.
  void set_learning_rate(double lr);
  /// Every gradient counts times `clip` (clip_factor(); undefined: times 1). A NaN takes no step:
  /// parameters, moments, masters and the count of steps stay. The versions of parameters rise.
  /// amaxes: of those parameters the largest magnitude is found on the way, in the parameter's own
  /// dtype and as it is in memory after the step.
  void step(const at::Tensor& clip = {}, const nn::WeightAmaxes& amaxes = {});
  void step(double lr, const at::Tensor& clip = {}) {
    set_learning_rate(lr);
    step(clip);
  }
  /// Gradients become undefined (not zero): backward writes them instead of adding.
  void zero_grad();

  /// sqrt(sum of g^2) over all parameters, an fp32 number on their device: 0 where no parameter has
  /// a gradient, NaN and Inf as they come. On a GPU two launches for up to 192 parameters
  /// (kernels/gpu/gradient_norm.h). Errors: a gradient of another dtype, size or device.
  at::Tensor gradient_norm() const;

  /// "<parameter>.exp_avg", "<parameter>.exp_avg_sq", "<parameter>.step" (fp32 scalar) and, where
  /// there is one, "<parameter>.master" of every parameter; the tensors are the live ones, not
  /// copies.
  NamedTensors state() const;
  /// Copies `state` in. Errors name the entry that is missing, unknown, or of another size or
  /// dtype.
  void load_state(const NamedTensors& state);

  const NamedTensors& parameters() const { return parameters_; }

 private:
  struct Slot {
    at::Tensor exp_avg, exp_avg_sq, step, master;
  };
  NamedTensors parameters_;  // deduplicated, requiring gradients
  std::vector<Slot> slots_;  // one a parameter
  Options options_;
  at::Tensor lr_, one_;  // fp64 and fp32
};

/// What gradients of this norm are multiplied with so that it does not exceed max_norm, as
/// torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)), NaN where norm is NaN; 1 where
/// max_norm is 0. Of an infinite norm it is 0. fp32, on norm's device, without waiting for it.
at::Tensor clip_factor(const at::Tensor& norm, double max_norm);

}  // namespace octavo::train
