#include "octavo/models/llama.h"

#include <cmath>

#include "octavo/nn/activation_checkpoint.h"
#include "octavo/ops/linear_cross_entropy.h"

namespace octavo::models {
namespace {

nn::Linear make_linear(std::int64_t in_features, std::int64_t out_features,
                       const at::TensorOptions& tensor) {
  return nn::Linear(nn::LinearOptions{
      .in_features = in_features, .out_features = out_features, .tensor = tensor});
}

nn::RMSNorm make_norm(const LlamaConfig& config, const at::TensorOptions& tensor) {
  return nn::RMSNorm(
      nn::RMSNormOptions{.features = config.dim, .eps = config.norm_eps, .tensor = tensor});
}

// LibTorch's fused attention on the CPU reads grouped heads without expanding them (enable_gqa)
// and is the fastest of the ways there: fp32, 16 x 128 tokens, 4 query and 2 key heads of 48,
// forward and backward on one core 19 ms, against 28 with expanded heads and 30 written out.
at::Tensor causal_attention(const at::Tensor& q_BHTP, const at::Tensor& k_BHSP,
                            const at::Tensor& v_BHSP) {
  const std::int64_t queries = q_BHTP.size(2), keys = k_BHSP.size(2);
  const bool grouped = q_BHTP.size(1) != k_BHSP.size(1);
  std::optional<at::Tensor> mask;
  // A single query at the end sees every key; several after a cache see all but the later ones.
  if (queries > 1 && queries < keys) {
    mask = at::ones({queries, keys}, q_BHTP.options().dtype(at::kBool)).tril_(keys - queries);
  }
  return at::scaled_dot_product_attention(q_BHTP, k_BHSP, v_BHSP, mask, /*dropout_p=*/0.0,
                                          /*is_causal=*/queries > 1 && queries == keys,
                                          /*scale=*/std::nullopt, /*enable_gqa=*/grouped);
}

}  // namespace

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config, const at::TensorOptions& tensor)
    : config(config) {
  q_proj = register_module("q_proj", make_linear(config.dim, config.dim, tensor));
  k_proj = register_module("k_proj", make_linear(config.dim, config.kv_dim(), tensor));
  v_proj = register_module("v_proj", make_linear(config.dim, config.kv_dim(), tensor));
  o_proj = register_module("o_proj", make_linear(config.dim, config.dim, tensor));
}

torch::Tensor LlamaAttentionImpl::forward(const torch::Tensor& x, const RopeTable& rope,
                                          KvCache* cache, std::int64_t layer) {
  const std::int64_t batch = x.size(0), sequence = x.size(1), head_dim = config.head_dim();
  const auto split = [&](const at::Tensor& y, std::int64_t heads) {
    return y.view({batch, sequence, heads, head_dim});
  };
  const at::Tensor q = rotate(split(q_proj(x), config.heads), rope);
  at::Tensor k = rotate(split(k_proj(x), config.kv_heads), rope);
  at::Tensor v = split(v_proj(x), config.kv_heads);
  if (cache != nullptr) std::tie(k, v) = cache->append(layer, k, v);
  const at::Tensor y_BHTP =
      causal_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2));
  return o_proj(y_BHTP.transpose(1, 2).reshape({batch, sequence, config.dim}));
}

LlamaMlpImpl::LlamaMlpImpl(const LlamaConfig& config, const at::TensorOptions& tensor) {
  gate_proj = register_module("gate_proj", make_linear(config.dim, config.hidden, tensor));
  up_proj = register_module("up_proj", make_linear(config.dim, config.hidden, tensor));
  down_proj = register_module("down_proj", make_linear(config.hidden, config.dim, tensor));
}

torch::Tensor LlamaMlpImpl::forward(const torch::Tensor& x) {
  return down_proj(at::silu(gate_proj(x)) * up_proj(x));
}

LlamaBlockImpl::LlamaBlockImpl(const LlamaConfig& config, const at::TensorOptions& tensor) {
  self_attn = register_module("self_attn", LlamaAttention(config, tensor));
  mlp = register_module("mlp", LlamaMlp(config, tensor));
  input_layernorm = register_module("input_layernorm", make_norm(config, tensor));
  post_attention_layernorm = register_module("post_attention_layernorm", make_norm(config, tensor));
}

torch::Tensor LlamaBlockImpl::forward(const torch::Tensor& x, const RopeTable& rope, KvCache* cache,
                                      std::int64_t layer) {
  const auto [h, y] = post_attention_layernorm->forward_residual(
      self_attn(input_layernorm(x), rope, cache, layer), x);
  return h + mlp(y);
}

LlamaModelImpl::LlamaModelImpl(const LlamaConfig& config, const at::TensorOptions& tensor)
    : config(config) {
  embed_tokens = register_module(
      "embed_tokens",
      nn::Embedding(nn::EmbeddingOptions{
          .vocabulary = config.vocabulary, .features = config.dim, .tensor = tensor}));
  layers = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < config.layers; ++i) layers->push_back(LlamaBlock(config, tensor));
  norm = register_module("norm", make_norm(config, tensor));
}

const RopeTable& LlamaModelImpl::rope_table(const at::Device& device) {
  if (!rope_.cosine.defined() || rope_.cosine.device() != device) {
    rope_ = make_rope_table(config.max_sequence, config.head_dim(), config.rope_theta, device);
  }
  return rope_;
}

torch::Tensor LlamaModelImpl::forward(const torch::Tensor& tokens, KvCache* cache) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.scalar_type() == at::kLong, "tokens are ",
              tokens.scalar_type(), " ", tokens.sizes(), "; they must be int64 of shape (B, T)");
  const std::int64_t sequence = tokens.size(1), begin = cache != nullptr ? cache->length() : 0;
  TORCH_CHECK(tokens.numel() > 0 && begin + sequence <= config.max_sequence, "tokens have shape ",
              tokens.sizes(),
              begin > 0 ? " after " + std::to_string(begin) + " cached positions" : "",
              "; there must be at least one, and at most max_sequence = ", config.max_sequence,
              " positions in a sequence");
  const RopeTable rope = rope_table(tokens.device()).slice(begin, sequence);

  at::Tensor x = embed_tokens(tokens);  // (B, T, D)
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const auto block = layers->ptr<LlamaBlockImpl>(i);
    if (activation_checkpointing == ActivationCheckpointing::kBlocks && cache == nullptr) {
      x = nn::checkpoint([block, rope](const at::Tensor& x) { return block->forward(x, rope); }, x);
    } else {
      x = block->forward(x, rope, cache, i);
    }
  }
  if (cache != nullptr) cache->advance(sequence);
  return norm(x);
}

LlamaImpl::LlamaImpl(const LlamaConfig& config, const at::TensorOptions& tensor) : config(config) {
  config.validate();
  model = register_module("model", LlamaModel(config, tensor));
  lm_head = register_module("lm_head", make_linear(config.dim, config.vocabulary, tensor));

  torch::NoGradGuard no_grad;
  const double deviation = 0.02;
  const double residual_deviation = deviation / std::sqrt(2.0 * double(config.layers));
  model->embed_tokens->weight.normal_(0, deviation);
  for (std::int64_t i = 0; i < config.layers; ++i) {
    auto& block = model->layers->at<LlamaBlockImpl>(i);
    block.self_attn->q_proj->weight.normal_(0, deviation);
    block.self_attn->k_proj->weight.normal_(0, deviation);
    block.self_attn->v_proj->weight.normal_(0, deviation);
    block.self_attn->o_proj->weight.normal_(0, residual_deviation);
    block.mlp->gate_proj->weight.normal_(0, deviation);
    block.mlp->up_proj->weight.normal_(0, deviation);
    block.mlp->down_proj->weight.normal_(0, residual_deviation);
  }
  if (config.tied_head) {
    lm_head->tie_weight(model->embed_tokens->weight);
  } else {
    lm_head->weight.normal_(0, deviation);
  }
}

torch::Tensor LlamaImpl::forward(const torch::Tensor& tokens) { return lm_head(model(tokens)); }

torch::Tensor LlamaImpl::forward_cached(const torch::Tensor& tokens, KvCache& cache) {
  return lm_head(model(tokens, &cache));
}

torch::Tensor LlamaImpl::loss(const torch::Tensor& tokens, const torch::Tensor& targets) {
  TORCH_CHECK(targets.sizes() == tokens.sizes(), "targets are ", targets.sizes(),
              "; they must have the tokens' shape ", tokens.sizes());
  if (!lm_head->recipe && !lm_head->bias.defined()) {
    return linear_cross_entropy(model(tokens), lm_head->weight, targets);
  }
  const at::Tensor logits_MV = forward(tokens).flatten(0, 1).to(at::kFloat);
  return at::cross_entropy_loss(logits_MV, targets.flatten());
}

void LlamaImpl::set_activation_checkpointing(ActivationCheckpointing mode) {
  model->activation_checkpointing = mode;
}

}  // namespace octavo::models
