#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octavo/models/feed_forward.h"
#include "octavo/models/kv_cache.h"
#include "octavo/models/llama_config.h"
#include "octavo/models/moe.h"
#include "octavo/models/rope.h"
#include "octavo/nn/embedding.h"
#include "octavo/nn/fusion.h"
#include "octavo/nn/linear.h"
#include "octavo/nn/rms_norm.h"

// Llama 3's decoder, and with MoeConfig::experts one whose blocks are, all or some, mixtures of
// experts. Module and parameter names are Hugging Face's LlamaForCausalLM's, so that state dicts of
// dense models are interchangeable. Shapes: B batch, T sequence, D model, F hidden, H heads, P
// features of a head, V vocabulary.
namespace octavo::models {

/// Causal attention with grouped key and value heads and rotated queries and keys, which
/// LlamaConfig::qk_norm normalises before (the model's norm_eps, as Qwen 3).
class LlamaAttentionImpl : public torch::nn::Module, public nn::FusedLayers {
 public:
  LlamaAttentionImpl(const LlamaConfig& config, const at::TensorOptions& tensor);

  /// x: (B, T, D) -> (B, T, D). `rope` holds the T positions of x. With a cache, x follows the
  /// positions held there and attends to them too.
  torch::Tensor forward(const torch::Tensor& x, const RopeTable& rope, KvCache* cache = nullptr,
                        std::int64_t layer = 0);
  torch::Tensor forward_shared(const nn::LinearInput& input, const RopeTable& rope,
                               KvCache* cache = nullptr, std::int64_t layer = 0);

  /// How forward_shared() takes x quantised, or nothing: it does not.
  std::optional<nn::InputRecipe> input_recipe(const torch::Tensor& x) const;

  LlamaConfig config;
  nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
  nn::RMSNorm q_norm{nullptr}, k_norm{nullptr};  // null without qk_norm
};
TORCH_MODULE(LlamaAttention);

/// The residual stream (B, T, D) between blocks: x, and what is yet to be added to it (undefined:
/// nothing), so that the next norm does it in its own pass, and so in backward.
struct ResidualStream {
  torch::Tensor x;
  torch::Tensor added = {};

  torch::Tensor sum() const { return added.defined() ? x + added : x; }
};

/// What a block gives: y, and of an MoE one the rest of MoeOutput too.
struct BlockOutput {
  ResidualStream y;
  torch::Tensor aux_loss;           // undefined in a dense block
  torch::Tensor tokens_per_expert;  // likewise
};

/// One block: x + attention(norm(x)), then x + mlp(norm(x)), or moe in place of mlp.
class LlamaBlockImpl : public torch::nn::Module {
 public:
  /// `layer`, from 0, decides between mlp and moe (MoeConfig::is_moe_layer).
  LlamaBlockImpl(const LlamaConfig& config, std::int64_t layer, const at::TensorOptions& tensor);

  BlockOutput forward(const ResidualStream& in, const RopeTable& rope, KvCache* cache = nullptr,
                      std::int64_t layer = 0);
  /// The same with the network of h = x + attention(norm(x)) recomputed in backward.
  BlockOutput forward_selective(const ResidualStream& in, const RopeTable& rope);

  LlamaAttention self_attn{nullptr};
  LlamaMlp mlp{nullptr};  // null in an MoE block
  Moe moe{nullptr};       // null in a dense one
  nn::RMSNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};

 private:
  /// x and attention(norm(x)).
  ResidualStream attend(const ResidualStream& in, const RopeTable& rope, KvCache* cache,
                        std::int64_t layer);
};
TORCH_MODULE(LlamaBlock);

/// Embedding, blocks and the last norm: everything below the head.
class LlamaModelImpl : public torch::nn::Module, public nn::FusedLayers {
 public:
  LlamaModelImpl(const LlamaConfig& config, const at::TensorOptions& tensor);

  /// tokens: (B, T) int64 -> (B, T, D). T must be at least 1, and with the positions of the cache
  /// at most max_sequence. Where gradients are recorded the routers record() their tokens, and
  /// aux_loss is the sum over the blocks; it is undefined in a dense model.
  torch::Tensor forward(const torch::Tensor& tokens, KvCache* cache = nullptr);
  torch::Tensor aux_loss;

  /// Block `layer`, as activation_checkpointing has it; without `fusion` its y is one tensor.
  BlockOutput run_block(std::int64_t layer, const ResidualStream& in, const RopeTable& rope);

  LlamaConfig config;
  ActivationCheckpointing activation_checkpointing = ActivationCheckpointing::kNone;
  nn::Embedding embed_tokens{nullptr};
  torch::nn::ModuleList layers{nullptr};  // of LlamaBlock
  nn::RMSNorm norm{nullptr};

 private:
  const RopeTable& rope_table(std::int64_t positions, const at::Device& device);
  RopeTable rope_;  // of as many positions as a forward pass has needed, on the tokens' device
};
TORCH_MODULE(LlamaModel);

/// The decoder with its head.
///
/// Weights start as initialise_weights() has it, norms at one, biases at zero. The seed is drawn
/// from LibTorch's CPU generator: after torch::manual_seed the weights are the same on every device
/// and at any number of threads. On the meta device nothing is allocated: for `inspect`.
class LlamaImpl : public torch::nn::Module {
 public:
  /// tensor: dtype and device of every parameter. Errors: LlamaConfig::validate's.
  explicit LlamaImpl(const LlamaConfig& config, const at::TensorOptions& tensor = {});

  /// tokens: (B, T) int64 -> logits (B, T, V) in the parameters' dtype. Errors: see
  /// LlamaModelImpl::forward; a token outside the vocabulary.
  torch::Tensor forward(const torch::Tensor& tokens);

  /// The logits of the tokens that follow those in the cache, which then holds them too.
  torch::Tensor forward_cached(const torch::Tensor& tokens, KvCache& cache);

  /// Mean cross-entropy in nats over all B * T targets, a scalar computed in fp32. tokens and
  /// targets: (B, T) int64. A target of -100 does not count on the CPU; on a GPU it makes the loss
  /// a NaN where the head is not converted (linear_cross_entropy()). `gradient`: what backward()
  /// will hand to this loss, for a trainer that knows it. Where the head's gradient is made in
  /// place (nn::put_gradients_in_place) and on a GPU, all gradients are made with it in the forward
  /// pass (linear_cross_entropy_in_place()).
  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& targets,
                     std::optional<double> gradient = std::nullopt);

  /// What loss() makes of x (B, T, D), the last norm's output.
  torch::Tensor head_loss(const torch::Tensor& x, const torch::Tensor& targets,
                          std::optional<double> gradient = std::nullopt);

  /// The routers' auxiliary losses of the last pass that recorded gradients, to be added to its
  /// loss(); a scalar, 0 where none balances by loss, undefined in a dense model.
  const torch::Tensor& aux_loss() const { return model->aux_loss; }

  /// The routers of the MoE blocks, in order.
  std::vector<nn::Router> routers() const;

  void set_activation_checkpointing(ActivationCheckpointing mode);

  LlamaConfig config;
  LlamaModel model{nullptr};
  nn::Linear lm_head{nullptr};
};
TORCH_MODULE(Llama);

}  // namespace octavo::models
