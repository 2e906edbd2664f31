#include "octavo/models/llama.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <functional>
#include <mutex>

#include "octavo/models/llama_initialise.h"
#include "octavo/nn/activation_checkpoint.h"
#include "octavo/nn/owned_gradient.h"
#include "octavo/ops/linear_cross_entropy.h"

namespace octavo::models {
namespace {

nn::RMSNorm make_norm(const LlamaConfig& config, const at::TensorOptions& tensor,
                      std::int64_t features) {
  return nn::RMSNorm(
      nn::RMSNormOptions{.features = features, .eps = config.norm_eps, .tensor = tensor});
}
nn::RMSNorm make_norm(const LlamaConfig& config, const at::TensorOptions& tensor) {
  return make_norm(config, tensor, config.dim);
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
  const auto make_input = [&](std::int64_t features) {
    return nn::Linear(nn::LinearOptions{.in_features = config.dim,
                                        .out_features = features,
                                        .bias = config.attention_bias,
                                        .tensor = tensor});
  };
  q_proj = register_module("q_proj", make_input(config.q_dim()));
  k_proj = register_module("k_proj", make_input(config.kv_dim()));
  v_proj = register_module("v_proj", make_input(config.kv_dim()));
  o_proj = register_module("o_proj", make_linear(config.q_dim(), config.dim, tensor));
  if (!config.qk_norm) return;
  q_norm = register_module("q_norm", make_norm(config, tensor, config.head_dim()));
  k_norm = register_module("k_norm", make_norm(config, tensor, config.head_dim()));
}

std::optional<nn::InputRecipe> LlamaAttentionImpl::input_recipe(const torch::Tensor& x) const {
  return fusion ? nn::recipe_together(x, {q_proj.get(), k_proj.get(), v_proj.get()}) : std::nullopt;
}

torch::Tensor LlamaAttentionImpl::forward(const torch::Tensor& x, const RopeTable& rope,
                                          KvCache* cache, std::int64_t layer) {
  return forward_shared({.x = x}, rope, cache, layer);
}

torch::Tensor LlamaAttentionImpl::forward_shared(const nn::LinearInput& input,
                                                 const RopeTable& rope, KvCache* cache,
                                                 std::int64_t layer) {
  const torch::Tensor& x = input.x;
  const std::int64_t batch = x.size(0), sequence = x.size(1), head_dim = config.head_dim();
  const auto split = [&](const at::Tensor& y, std::int64_t heads) {
    return y.view({batch, sequence, heads, head_dim});
  };
  const auto normed = [](nn::RMSNorm& norm, const at::Tensor& heads) {
    return norm.is_empty() ? heads : norm(heads);
  };
  const auto qkv = nn::forward_together(input, {q_proj.get(), k_proj.get(), v_proj.get()}, fusion);
  auto [q, k] = rotate(normed(q_norm, split(qkv[0], config.heads)),
                       normed(k_norm, split(qkv[1], config.kv_heads)), rope);
  at::Tensor v = split(qkv[2], config.kv_heads);
  if (cache != nullptr) std::tie(k, v) = cache->append(layer, k, v);
  const at::Tensor y_BHTP =
      causal_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2));
  return o_proj(y_BHTP.transpose(1, 2).reshape({batch, sequence, config.q_dim()}));
}

LlamaBlockImpl::LlamaBlockImpl(const LlamaConfig& config, std::int64_t layer,
                               const at::TensorOptions& tensor) {
  self_attn = register_module("self_attn", LlamaAttention(config, tensor));
  if (config.moe.is_moe_layer(layer)) {
    moe = register_module("moe", Moe(config.dim, config.moe, tensor));
  } else {
    mlp = register_module("mlp", LlamaMlp(config.dim, config.hidden, tensor));
  }
  input_layernorm = register_module("input_layernorm", make_norm(config, tensor));
  post_attention_layernorm = register_module("post_attention_layernorm", make_norm(config, tensor));
}

ResidualStream LlamaBlockImpl::attend(const ResidualStream& in, const RopeTable& rope,
                                      KvCache* cache, std::int64_t layer) {
  const std::optional<nn::InputRecipe> recipe = self_attn->input_recipe(in.x);
  if (!in.added.defined()) {
    const nn::LinearInput normed = input_layernorm->forward_for(in.x, recipe);
    return {in.x, self_attn->forward_shared(normed, rope, cache, layer)};
  }
  const auto [x, normed] = input_layernorm->forward_residual_for(in.added, in.x, recipe);
  return {x, self_attn->forward_shared(normed, rope, cache, layer)};
}

BlockOutput LlamaBlockImpl::forward(const ResidualStream& in, const RopeTable& rope, KvCache* cache,
                                    std::int64_t layer) {
  const auto [x, attention] = attend(in, rope, cache, layer);
  if (moe.is_empty()) {
    const auto [h, normed] =
        post_attention_layernorm->forward_residual_for(attention, x, mlp->input_recipe(attention));
    return {.y = {h, mlp->forward_shared(normed)}, .aux_loss = {}, .tokens_per_expert = {}};
  }
  const auto [h, normed] = post_attention_layernorm->forward_residual(attention, x);
  const MoeOutput out = moe(normed);
  return {{h, out.y}, out.aux_loss, out.tokens_per_expert};
}

LlamaModelImpl::LlamaModelImpl(const LlamaConfig& config, const at::TensorOptions& tensor)
    : config(config) {
  config.validate();
  embed_tokens = register_module("embed_tokens",
                                 nn::Embedding(nn::EmbeddingOptions{.vocabulary = config.vocabulary,
                                                                    .features = config.dim,
                                                                    .initialise = false,
                                                                    .tensor = tensor}));
  layers = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < config.layers; ++i) {
    layers->push_back(LlamaBlock(config, i, tensor));
  }
  norm = register_module("norm", make_norm(config, tensor));
}

// Not of max_sequence at once: for ten million positions that would be gigabytes. A row does not
// depend on how many there are.
const RopeTable& LlamaModelImpl::rope_table(std::int64_t positions, const at::Device& device) {
  if (!rope_.cosine.defined() || rope_.cosine.device() != device ||
      rope_.cosine.size(0) < positions) {
    std::int64_t rows = 1024;
    while (rows < positions) rows *= 2;
    rope_ = make_rope_table(std::min(rows, config.max_sequence), config.head_dim(),
                            config.rope_theta, device, config.rope_scaling);
  }
  return rope_;
}

namespace {

// f(x) recomputed in backward, with its auxiliary loss and tokens where it has them.
BlockOutput checkpointed(std::function<BlockOutput(const at::Tensor&)> f, const at::Tensor& x) {
  const auto tensors = nn::checkpoint(
      [f = std::move(f)](const at::Tensor& x) {
        const BlockOutput out = f(x);
        return out.aux_loss.defined()
                   ? std::vector<at::Tensor>{out.y.sum(), out.aux_loss, out.tokens_per_expert}
                   : std::vector<at::Tensor>{out.y.sum()};
      },
      x);
  if (tensors.size() == 1) return {.y = {tensors[0]}, .aux_loss = {}, .tokens_per_expert = {}};
  return {{tensors[0]}, tensors[1], tensors[2]};
}

}  // namespace

BlockOutput LlamaBlockImpl::forward_selective(const ResidualStream& in, const RopeTable& rope) {
  const at::Tensor h = attend(in, rope, nullptr, 0).sum();
  BlockOutput out = checkpointed(
      [norm = post_attention_layernorm, mlp = mlp, moe = moe](const at::Tensor& h) {
        if (moe.is_empty()) {
          const nn::LinearInput normed = nn::RMSNorm(norm)->forward_for(h, mlp->input_recipe(h));
          return BlockOutput{.y = {LlamaMlp(mlp)->forward_shared(normed)},
                             .aux_loss = {},
                             .tokens_per_expert = {}};
        }
        const MoeOutput out = Moe(moe)(nn::RMSNorm(norm)(h));
        return BlockOutput{{out.y}, out.aux_loss, out.tokens_per_expert};
      },
      h);
  out.y = {h, out.y.x};
  return out;
}

BlockOutput LlamaModelImpl::run_block(std::int64_t layer, const ResidualStream& in,
                                      const RopeTable& rope) {
  const auto block = layers->ptr<LlamaBlockImpl>(static_cast<std::size_t>(layer));
  const auto run = [&] {
    switch (activation_checkpointing) {
      case ActivationCheckpointing::kSelective:
        return block->forward_selective(in, rope);
      case ActivationCheckpointing::kBlocks:
        return checkpointed(
            [block, rope](const at::Tensor& x) { return block->forward({x}, rope); }, in.sum());
      default:
        return block->forward(in, rope);
    }
  };
  BlockOutput out = run();
  if (!fusion) out.y = {out.y.sum()};
  return out;
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
  const RopeTable rope = rope_table(begin + sequence, tokens.device()).slice(begin, sequence);

  ResidualStream x{embed_tokens(tokens)};  // (B, T, D)
  const bool trains = at::GradMode::is_enabled();
  if (trains) aux_loss.reset();
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const auto block = layers->ptr<LlamaBlockImpl>(i);
    const BlockOutput out =
        cache == nullptr ? run_block(i, x, rope) : block->forward(x, rope, cache, i);
    x = out.y;
    if (!trains || !out.aux_loss.defined()) continue;
    // Here and not inside the block, which runs twice where it is checkpointed.
    aux_loss = aux_loss.defined() ? aux_loss + out.aux_loss : out.aux_loss;
    block->moe->router->record(out.tokens_per_expert);
  }
  if (cache != nullptr) cache->advance(sequence);
  return x.added.defined() ? std::get<1>(norm->forward_residual(x.added, x.x)) : norm(x.x);
}

namespace {

// Of LibTorch's CPU generator, so that torch::manual_seed() decides about the weights.
std::uint64_t next_seed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

}  // namespace

LlamaImpl::LlamaImpl(const LlamaConfig& config, const at::TensorOptions& tensor) : config(config) {
  const std::uint64_t seed = next_seed();
  model = register_module("model", LlamaModel(config, tensor));
  lm_head = register_module("lm_head", make_linear(config.dim, config.vocabulary, tensor));

  if (config.tied_head) lm_head->tie_weight(model->embed_tokens->weight);
  initialise_weights(*this, config.layers, seed);
}

torch::Tensor LlamaImpl::forward(const torch::Tensor& tokens) { return lm_head(model(tokens)); }

torch::Tensor LlamaImpl::forward_cached(const torch::Tensor& tokens, KvCache& cache) {
  return lm_head(model(tokens, &cache));
}

torch::Tensor LlamaImpl::loss(const torch::Tensor& tokens, const torch::Tensor& targets,
                              std::optional<double> gradient) {
  TORCH_CHECK(targets.sizes() == tokens.sizes(), "targets are ", targets.sizes(),
              "; they must have the tokens' shape ", tokens.sizes());
  return head_loss(model(tokens), targets, gradient);
}

torch::Tensor LlamaImpl::head_loss(const torch::Tensor& x, const torch::Tensor& targets,
                                   std::optional<double> gradient) {
  if (!lm_head->recipe && !lm_head->bias.defined()) {
    const at::Tensor& w = lm_head->weight;
    // A tied weight is the embedding's, which adds its rows in place too.
    const bool owned =
        lm_head->gradient_in_place || (config.tied_head && model->embed_tokens->gradient_in_place);
    if (gradient && owned && w.is_cuda() && nn::owns_gradient(w)) {
      return linear_cross_entropy_in_place(x, w, targets, *gradient);
    }
    return linear_cross_entropy(x, w, targets);
  }
  const at::Tensor logits_MV = lm_head(x).flatten(0, 1).to(at::kFloat);
  return cross_entropy(logits_MV, targets.flatten());
}

std::vector<nn::Router> LlamaImpl::routers() const {
  std::vector<nn::Router> routers;
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const auto& block = model->layers->at<LlamaBlockImpl>(i);
    if (!block.moe.is_empty()) routers.push_back(block.moe->router);
  }
  return routers;
}

void LlamaImpl::set_activation_checkpointing(ActivationCheckpointing mode) {
  model->activation_checkpointing = mode;
}

}  // namespace octavo::models
