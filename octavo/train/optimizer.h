#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "octavo/train/config.h"
#include "octavo/train/safetensors.h"

namespace octavo::train {

/// `named` without the second and later names of a tensor (tied weights are registered under two).
/// The first name stays; the order is kept.
NamedTensors deduplicate(const NamedTensors& named);

/// AdamW (Loshchilov and Hutter, arXiv:1711.05101) through at::_fused_adamw_: for each parameter p
/// with gradient g, at the t-th step
///   p -= lr decay p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   p -= lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
/// decay is weight_decay for matrices (dim >= 2) and 0 for norms and biases. The states have the
/// parameter's dtype (fp32 or bf16: the fused kernel takes one dtype for all). A parameter that
/// requires no gradient, or has none, is left alone. A tensor given twice is stepped once.
class AdamW {
 public:
  struct Options {
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;

    static Options of(const TrainConfig& config);
  };
  AdamW(const NamedTensors& parameters, const Options& options);

  void step(double lr);
  /// Gradients become undefined (not zero): backward writes them instead of adding.
  void zero_grad();

  /// sqrt(sum of g^2) over all parameters, in fp32; then, where it exceeds max_norm (and max_norm
  /// is not 0), each g *= max_norm / (norm + 1e-6), as torch.nn.utils.clip_grad_norm_. Returns the
  /// norm before clipping. A non-finite norm is returned and scales nothing.
  double clip_gradients(double max_norm);

  /// "<parameter>.exp_avg", "<parameter>.exp_avg_sq" and "<parameter>.step" (fp32 scalar) of every
  /// parameter; the tensors are the live ones, not copies.
  NamedTensors state() const;
  /// Copies `state` in. Errors name the entry that is missing, unknown, or of another size or
  /// dtype.
  void load_state(const NamedTensors& state);

  const NamedTensors& parameters() const { return parameters_; }

 private:
  struct Slot {
    at::Tensor exp_avg, exp_avg_sq, step;
  };
  NamedTensors parameters_;  // deduplicated, requiring gradients
  std::vector<Slot> slots_;  // one a parameter
  Options options_;
};

}  // namespace octavo::train
