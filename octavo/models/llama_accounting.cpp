#include "octavo/models/llama_accounting.h"

#include <c10/core/ScalarType.h>

#include <memory>
#include <unordered_set>

namespace octavo::models {

ParameterCount parameter_count(const LlamaConfig& config) {
  config.validate();
  const std::int64_t D = config.dim, F = config.hidden;
  ParameterCount count;
  count.embedding = config.vocabulary * D;
  count.linears = config.layers * (2 * D * D + 2 * D * config.kv_dim() + 3 * D * F);
  count.norms = (2 * config.layers + 1) * D;
  count.head = config.tied_head ? 0 : config.vocabulary * D;
  return count;
}

FlopsPerToken flops_per_token(const LlamaConfig& config, std::int64_t sequence) {
  TORCH_CHECK(sequence >= 1, "flops_per_token: the sequence is ", sequence,
              " tokens; it must have at least one");
  const double D = double(config.dim);
  return {.linears = 6.0 * double(parameter_count(config).linears),
          .head = 6.0 * double(config.vocabulary) * D,
          .attention = 6.0 * double(config.layers) * D * double(sequence + 1)};
}

MemoryEstimate memory_estimate(const LlamaConfig& config, at::ScalarType dtype) {
  const std::int64_t bytes =
      parameter_count(config).total() * std::int64_t(c10::elementSize(dtype));
  return {.parameters = bytes, .gradients = bytes, .optimizer = 2 * bytes};
}

std::vector<ModuleRow> list_modules(const LlamaImpl& model) {
  std::vector<ModuleRow> rows;
  std::unordered_set<const void*> seen;
  for (const auto& item : model.named_modules()) {
    ModuleRow row{.fqn = item.key(), .kind = "", .shape = {}, .recipe = ""};
    if (const auto* linear = item.value()->as<nn::LinearImpl>()) {
      row.kind = "Linear";
      if (linear->recipe) row.recipe = linear->recipe->to_string();
    } else if (item.value()->as<nn::EmbeddingImpl>() != nullptr) {
      row.kind = "Embedding";
    } else if (item.value()->as<nn::RMSNormImpl>() != nullptr) {
      row.kind = "RMSNorm";
    } else {
      continue;
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
