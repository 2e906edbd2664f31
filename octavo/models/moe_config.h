#pragma once

#include <cstdint>

#include "octavo/nn/router.h"

namespace octavo::models {

/// Where a token's router weight goes: times its expert's output (DeepSeek), or times what the
/// expert is given (Llama 4).
enum class WeightOn : std::uint8_t { kOutput, kInput };

/// The mixture of experts of a decoder: which blocks have one, and what it is made of.
struct MoeConfig {
  std::int64_t experts = 0;        ///< E; 0: every block is dense
  std::int64_t top_k = 1;          ///< k, experts of a token
  std::int64_t hidden = 768;       ///< F of one expert
  std::int64_t shared_hidden = 0;  ///< F of the shared expert, which sees every token; 0: none
  std::int64_t every = 1;          ///< blocks every, 2 every, ... (counted from 1) are MoE
  std::int64_t dense_first = 0;    ///< but not the first of all
  nn::RouterScore score = nn::RouterScore::kSoftmax;
  bool normalise = false;  ///< a token's weights add up to 1
  double scale = 1.0;      ///< of the weights, after that
  WeightOn weight_on = WeightOn::kOutput;
  nn::LoadBalance balance = nn::LoadBalance::kLoss;
  double balance_rate = 1e-3;

  /// Whether block `layer`, from 0, has experts instead of a dense network.
  bool is_moe_layer(std::int64_t layer) const {
    return experts > 0 && layer >= dense_first && (layer + 1) % every == 0;
  }
  /// How many of the first `layers` blocks have.
  std::int64_t moe_layers(std::int64_t layers) const;

  /// Errors: the first field that breaks its rule, with its value and the rule. `layers`: blocks of
  /// the model, of which one at least must be MoE. Without experts everything is valid.
  void validate(std::int64_t layers) const;

  friend bool operator==(const MoeConfig&, const MoeConfig&) = default;
};

}  // namespace octavo::models
