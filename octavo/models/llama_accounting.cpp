#include "octavo/models/llama_accounting.h"

#include <c10/core/ScalarType.h>

#include <memory>
#include <unordered_set>

namespace octavo::models {

ParameterCount parameter_count(const LlamaConfig& config) {
  config.validate();
  const MoeConfig& moe = config.moe;
  const std::int64_t D = config.dim;
  const std::int64_t moe_layers = moe.moe_layers(config.layers);
  const std::int64_t dense_layers = config.layers - moe_layers;
  const std::int64_t bias = moe.balance == nn::LoadBalance::kBias ? moe.experts : 0;
  ParameterCount count;
  count.embedding = config.vocabulary * D;
  count.linears = config.layers * (2 * D * config.q_dim() + 2 * D * config.kv_dim()) +
                  dense_layers * 3 * D * config.hidden + moe_layers * 3 * D * moe.shared_hidden;
  count.routers = moe_layers * (moe.experts * D + bias);
  count.experts = moe_layers * moe.experts * 3 * D * moe.hidden;
  count.active_experts = moe_layers * moe.top_k * 3 * D * moe.hidden;
  count.norms = (2 * config.layers + 1) * D;
  if (config.qk_norm) count.norms += config.layers * 2 * config.head_dim();
  if (config.attention_bias) count.biases = config.layers * (config.q_dim() + 2 * config.kv_dim());
  count.head = config.tied_head ? 0 : config.vocabulary * D;
  return count;
}

FlopsPerToken flops_per_token(const LlamaConfig& config, std::int64_t sequence) {
  TORCH_CHECK(sequence >= 1, "flops_per_token: the sequence is ", sequence,
              " tokens; it must have at least one");
  const double D = double(config.dim);
  const ParameterCount count = parameter_count(config);
  const double gates = double(config.moe.moe_layers(config.layers) * config.moe.experts) * D;
  return {.linears = 6.0 * (double(count.linears) + gates),
          .experts = 6.0 * double(count.active_experts),
          .head = 6.0 * double(config.vocabulary) * D,
          .attention = 6.0 * double(config.layers) * double(config.q_dim()) * double(sequence + 1)};
}

MemoryEstimate memory_estimate(const LlamaConfig& config, at::ScalarType dtype,
                               bool master_weights) {
  const std::int64_t count = parameter_count(config).total();
  const std::int64_t bytes = count * std::int64_t(c10::elementSize(dtype));
  return {.parameters = bytes,
          .gradients = bytes,
          .optimizer = master_weights ? 3 * count * std::int64_t(sizeof(float)) : 2 * bytes};
}

std::vector<ModuleRow> list_modules(const LlamaImpl& model) {
  std::vector<ModuleRow> rows;
  std::unordered_set<const void*> seen;
  for (const auto& item : model.named_modules()) {
    ModuleRow row{.fqn = item.key(), .kind = "", .shape = {}, .recipe = ""};
    if (item.value()->as<nn::LinearImpl>() != nullptr) {
      row.kind = "Linear";
    } else if (const auto* experts = item.value()->as<nn::ExpertsImpl>()) {
      row.kind = "Experts";
      row.shape = {experts->options.experts, experts->options.features, experts->options.hidden};
    } else if (const auto* router = item.value()->as<nn::RouterImpl>()) {
      if (!router->expert_bias.defined()) continue;
      row.kind = "Router";
      row.shape = {router->options.experts};
    } else if (item.value()->as<nn::EmbeddingImpl>() != nullptr) {
      row.kind = "Embedding";
    } else if (item.value()->as<nn::RMSNormImpl>() != nullptr) {
      row.kind = "RMSNorm";
    } else {
      continue;
    }
    if (const auto* layer = dynamic_cast<const nn::Float8Layer*>(item.value().get())) {
      row.converts = true;
      if (layer->recipe) row.recipe = layer->recipe->to_string();
    }
    for (const auto& parameter : item.value()->named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = parameter.value();
      if (parameter.key() == "weight") row.shape = tensor.sizes().vec();
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) row.parameters += tensor.numel();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<NamedLinear> named_linears(const LlamaImpl& model) {
  std::vector<NamedLinear> linears;
  for (const auto& item : model.named_modules()) {
    if (auto linear = std::dynamic_pointer_cast<nn::LinearImpl>(item.value())) {
      linears.push_back({item.key(), nn::Linear(linear)});
    }
  }
  return linears;
}

}  // namespace octavo::models
