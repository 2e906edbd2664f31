#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "octavo/models/llama.h"
#include "octavo/models/llama_config.h"

// What a model costs: parameters, operations, memory. All from its sizes; nothing is allocated.
namespace octavo::models {

/// Parameters by where they sit; a tied head's weight counts once, under the embedding.
struct ParameterCount {
  std::int64_t embedding = 0;  ///< V * D
  std::int64_t linears = 0;    ///< attention, dense networks, shared experts
  std::int64_t routers = 0;    ///< gates, and biases where experts are balanced by them
  std::int64_t experts = 0;    ///< the routed ones, all of them
  std::int64_t norms = 0;
  std::int64_t biases = 0;          ///< of the attention's linears
  std::int64_t head = 0;            ///< V * D, or 0 when tied
  std::int64_t active_experts = 0;  ///< of `experts`, those a token goes through: k / E
  std::int64_t total() const {
    return embedding + linears + routers + experts + norms + biases + head;
  }
  /// What a token goes through: total() with its own experts only.
  std::int64_t active() const { return total() - experts + active_experts; }
};
ParameterCount parameter_count(const LlamaConfig& config);

/// Floating-point operations of one training step (forward and backward) for each token of
/// sequences of T tokens; a multiply-add is two.
///
///   linears   = 6 * weights of the blocks' linears   (2 forward, 2 for dx, 2 for dw), gates too
///   experts   = 6 * weights of the k experts of a token
///   head      = 6 * V * D                            (tied or not)
///   attention = 6 * layers * H * P * (T + 1)         the causal half: a token sees (T + 1) / 2
///               positions on average; q.k and p.v are 2 * H * P each, times 3 for both directions
///
/// The lookup in the embedding, norms, RoPE, softmax, routing and SwiGLU's product are left out, as
/// is what activation checkpointing computes twice: this is the model's work, the numerator of MFU.
/// (torchtitan and PaLM count attention's whole square, 12 * layers * D * T: about twice.)
struct FlopsPerToken {
  double linears = 0, experts = 0, head = 0, attention = 0;
  double total() const { return linears + experts + head + attention; }
};
FlopsPerToken flops_per_token(const LlamaConfig& config, std::int64_t sequence);

/// Bytes of the tensors that live as long as training does. Activations come on top.
struct MemoryEstimate {
  std::int64_t parameters = 0;  ///< in `dtype`
  std::int64_t gradients = 0;   ///< likewise
  /// AdamW's two moments, likewise; with masters those too, all in fp32.
  std::int64_t optimizer = 0;
  std::int64_t total() const { return parameters + gradients + optimizer; }
};
MemoryEstimate memory_estimate(const LlamaConfig& config, at::ScalarType dtype,
                               bool master_weights = false);

/// One module that holds parameters, for `inspect`.
struct ModuleRow {
  std::string fqn;   ///< "model.layers.0.self_attn.q_proj"
  std::string kind;  ///< "Embedding", "RMSNorm", "Linear", "Experts" or "Router"
  /// Of the weight; of experts E, D and F, of a router's bias E.
  std::vector<std::int64_t> shape;
  std::int64_t parameters = 0;  ///< 0 where they are another module's (a tied head)
  bool converts = false;        ///< FP8 products can take it: Linear and Experts
  std::string recipe;  ///< a linear's or experts' canonical recipe string, or "" in high precision
};

/// Every embedding, linear, norm, experts and router with a bias in registration order, which is
/// the order of the state dict: q, k, v, o, then gate, up, down or router, gate, experts, shared
/// expert, then the two norms, block by block.
std::vector<ModuleRow> list_modules(const LlamaImpl& model);

struct NamedLinear {
  std::string fqn;
  nn::Linear linear;
};

/// The linears among them, in the same order; lm_head last.
std::vector<NamedLinear> named_linears(const LlamaImpl& model);

}  // namespace octavo::models
