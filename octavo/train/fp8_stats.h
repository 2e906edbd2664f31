#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "octavo/models/llama.h"
#include "octavo/nn/float8_layer.h"
#include "octavo/recipe/recipe.h"

// FP8 health: what quantisation does to the operands of each layer, sampled while a model trains.
namespace octavo::train {

/// One operand of one layer, of the elements that are finite:
///   saturated  share whose FP8 value is the format's largest magnitude (where scales come from the
///              amax every block has one at least, where they round up none)
///   flushed    share that is not zero and whose FP8 value is
///   snr_db     10 log10(sum v^2 / sum (v - its FP8 value)^2); +Inf where nothing is lost
struct OperandHealth {
  double saturated = 0.0;
  double flushed = 0.0;
  double snr_db = 0.0;
};

/// The figures of `operand` (rows, K) quantised by rows as `layout` says: fp32 numbers on its
/// device, [elements saturated, flushed, counted, sum v^2, sum of squared errors], so that nothing
/// waits for the device.
at::Tensor operand_sums(const at::Tensor& operand, const LayoutSpec& layout);
OperandHealth operand_health(const at::Tensor& sums);

/// While one lives, every converted layer below `model` that runs with gradients recorded is
/// sampled: x and w as they enter y's product, dy as it enters dx's. Operands that the recipe keeps
/// in high precision are left out. The tensors that training computes with are only read.
class Fp8Sampler {
 public:
  explicit Fp8Sampler(models::Llama& model);
  ~Fp8Sampler();
  Fp8Sampler(const Fp8Sampler&) = delete;
  Fp8Sampler& operator=(const Fp8Sampler&) = delete;

  /// {"model.layers.0.self_attn.q_proj": {"x": {"saturated": ..., "flushed": ..., "snr_db": ...},
  /// "w": ..., "dy": ...}, ...} of the layers in the model's order; experts' two weights are layers
  /// of their own. snr_db is null where it is not finite. Waits for the device once.
  nlohmann::ordered_json layers() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // gradients' hooks share it
};

}  // namespace octavo::train
