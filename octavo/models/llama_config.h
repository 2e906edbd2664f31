#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octavo/models/moe_config.h"
#include "octavo/models/rope_scaling.h"

namespace octavo::models {

/// Sizes of a Llama style decoder: dense as Llama 3, Qwen 2 (attention_bias) and Qwen 3 (qk_norm),
/// or with a mixture of experts in all or some of its blocks as Mixtral, Llama 4 and DeepSeek
/// (their attention is Llama 3's here). Letters: D model, F hidden, H heads, V vocabulary, T
/// sequence.
struct LlamaConfig {
  std::int64_t vocabulary = 256;     ///< V
  std::int64_t dim = 256;            ///< D
  std::int64_t layers = 4;           ///< blocks
  std::int64_t heads = 4;            ///< H, of an even size (RoPE pairs)
  std::int64_t kv_heads = 4;         ///< divides heads: each serves heads / kv_heads query heads
  std::int64_t head_size = 0;        ///< features of one head; 0: dim / heads
  std::int64_t hidden = 768;         ///< F of the dense blocks
  std::int64_t max_sequence = 8192;  ///< longest T
  double rope_theta = 500000.0;
  RopeScaling rope_scaling = {};
  double norm_eps = 1e-5;
  bool attention_bias = false;  ///< of q_proj, k_proj and v_proj
  bool qk_norm = false;         ///< queries and keys: RMSNorm over a head's features before RoPE
  bool tied_head = false;       ///< lm_head.weight is model.embed_tokens.weight
  MoeConfig moe = {};           ///< without experts unless said otherwise

  /// Features of one head. Only for sizes that passed validate().
  std::int64_t head_dim() const { return head_size > 0 ? head_size : dim / heads; }
  /// Features of all query heads.
  std::int64_t q_dim() const { return heads * head_dim(); }
  /// Features of all key (or value) heads.
  std::int64_t kv_dim() const { return kv_heads * head_dim(); }

  /// Errors: the first field that breaks its rule, with its value and the rule.
  void validate() const;

  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

/// What backward recomputes instead of keeping, with the same bits. kBlocks: each block, which
/// holds its input only between the passes, for about a third more work. kSelective: its
/// feed-forward network or experts with their norm, most of what a block keeps; attention with its
/// outputs, and the residual stream, are kept.
enum class ActivationCheckpointing : std::uint8_t { kNone, kSelective, kBlocks };

/// Names of the presets: "debug", ..., "llama3-8b", smallest first, then those with experts,
/// "debug-moe", ..., likewise.
std::vector<std::string> llama_preset_names();

/// The preset of that name; an unknown name is an error that lists the known ones.
LlamaConfig llama_preset(const std::string& name);

}  // namespace octavo::models
