#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "octavo/models/feed_forward.h"
#include "octavo/models/moe_config.h"
#include "octavo/nn/experts.h"
#include "octavo/nn/router.h"

// The network of a block with a mixture of experts. Shapes: M tokens, D model, E experts, k experts
// of a token.
namespace octavo::models {

struct MoeOutput {
  torch::Tensor y;                  // as x
  torch::Tensor aux_loss;           // scalar fp32: Routing::aux_loss
  torch::Tensor tokens_per_expert;  // (E) int64
};

/// y = shared(x) + sum over the token's k experts of weight * expert(x)
/// (WeightOn::kInput: of expert(weight * x)). Names are torchtitan's: router.gate, experts;
/// shared_expert is Hugging Face's.
///
/// Tokens are sorted by expert, go through nn::Experts by groups of any size, and come back by
/// gathering (ops/permute.h): deterministic, with the weights folded in there, or (kInput) on the
/// way in. Nothing waits for the device.
class MoeImpl : public torch::nn::Module {
 public:
  MoeImpl(std::int64_t dim, const MoeConfig& config, const at::TensorOptions& tensor);

  MoeOutput forward(const torch::Tensor& x);  // (B, T, D)

  MoeConfig config;
  nn::Router router{nullptr};
  nn::Experts experts{nullptr};
  LlamaMlp shared_expert{nullptr};  // null without one
};
TORCH_MODULE(Moe);

}  // namespace octavo::models
