#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "octavo/models/kv_cache.h"
#include "octavo/models/llama_config.h"
#include "octavo/models/rope.h"
#include "octavo/nn/embedding.h"
#include "octavo/nn/linear.h"
#include "octavo/nn/rms_norm.h"

// Llama 3's decoder. Module and parameter names are Hugging Face's LlamaForCausalLM's, so that
// state dicts are interchangeable. Shapes: B batch, T sequence, D model, F hidden, H heads, P
// features of a head, V vocabulary.
namespace octavo::models {

/// What backward recomputes instead of keeping. kBlocks: between the passes each block holds its
/// input only; the same bits, about a third more work.
enum class ActivationCheckpointing : std::uint8_t { kNone, kBlocks };

/// Causal attention with grouped key and value heads and rotated queries and keys.
class LlamaAttentionImpl : public torch::nn::Module {
 public:
  LlamaAttentionImpl(const LlamaConfig& config, const at::TensorOptions& tensor);

  /// x: (B, T, D) -> (B, T, D). `rope` holds the T positions of x. With a cache, x follows the
  /// positions held there and attends to them too.
  torch::Tensor forward(const torch::Tensor& x, const RopeTable& rope, KvCache* cache = nullptr,
                        std::int64_t layer = 0);

  LlamaConfig config;
  nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
};
TORCH_MODULE(LlamaAttention);

/// SwiGLU: down(silu(gate(x)) * up(x)).
class LlamaMlpImpl : public torch::nn::Module {
 public:
  LlamaMlpImpl(const LlamaConfig& config, const at::TensorOptions& tensor);

  torch::Tensor forward(const torch::Tensor& x);  // (B, T, D) -> (B, T, D)

  nn::Linear gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};
};
TORCH_MODULE(LlamaMlp);

/// One block: x + attention(norm(x)), then x + mlp(norm(x)).
class LlamaBlockImpl : public torch::nn::Module {
 public:
  LlamaBlockImpl(const LlamaConfig& config, const at::TensorOptions& tensor);

  torch::Tensor forward(const torch::Tensor& x, const RopeTable& rope, KvCache* cache = nullptr,
                        std::int64_t layer = 0);  // (B, T, D) -> (B, T, D)

  LlamaAttention self_attn{nullptr};
  LlamaMlp mlp{nullptr};
  nn::RMSNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};
};
TORCH_MODULE(LlamaBlock);

/// Embedding, blocks and the last norm: everything below the head.
class LlamaModelImpl : public torch::nn::Module {
 public:
  LlamaModelImpl(const LlamaConfig& config, const at::TensorOptions& tensor);

  /// tokens: (B, T) int64 -> (B, T, D). T must be at least 1, and with the positions of the cache
  /// at most max_sequence.
  torch::Tensor forward(const torch::Tensor& tokens, KvCache* cache = nullptr);

  LlamaConfig config;
  ActivationCheckpointing activation_checkpointing = ActivationCheckpointing::kNone;
  nn::Embedding embed_tokens{nullptr};
  torch::nn::ModuleList layers{nullptr};  // of LlamaBlock
  nn::RMSNorm norm{nullptr};

 private:
  const RopeTable& rope_table(const at::Device& device);
  RopeTable rope_;  // of max_sequence positions, made at first use on the tokens' device
};
TORCH_MODULE(LlamaModel);

/// The decoder with its head.
///
/// Weights start normal with deviation 0.02, those of o_proj and down_proj, which add to the
/// residual stream, divided by sqrt(2 * layers); norms at one. Deterministic after
/// torch::manual_seed. On the meta device nothing is allocated: for `inspect`.
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
  /// targets: (B, T) int64; a target of -100 does not count.
  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& targets);

  void set_activation_checkpointing(ActivationCheckpointing mode);

  LlamaConfig config;
  LlamaModel model{nullptr};
  nn::Linear lm_head{nullptr};
};
TORCH_MODULE(Llama);

}  // namespace octavo::models
