#include "octavo/models/moe.h"

#include <ATen/Functions.h>

#include <optional>

#include "octavo/nn/sort_by_expert.h"
#include "octavo/ops/permute.h"

namespace octavo::models {

MoeImpl::MoeImpl(std::int64_t dim, const MoeConfig& config, const at::TensorOptions& tensor)
    : config(config) {
  router =
      register_module("router", nn::Router(nn::RouterOptions{.features = dim,
                                                             .experts = config.experts,
                                                             .top_k = config.top_k,
                                                             .score = config.score,
                                                             .normalise = config.normalise,
                                                             .scale = config.scale,
                                                             .balance = config.balance,
                                                             .balance_rate = config.balance_rate,
                                                             .tensor = tensor}));
  experts = register_module(
      "experts",
      nn::Experts(nn::ExpertsOptions{
          .experts = config.experts, .features = dim, .hidden = config.hidden, .tensor = tensor}));
  if (config.shared_hidden > 0) {
    shared_expert = register_module("shared_expert", LlamaMlp(dim, config.shared_hidden, tensor));
  }
}

MoeOutput MoeImpl::forward(const torch::Tensor& x) {
  const at::Tensor x_MD = x.reshape({-1, x.size(-1)});
  const nn::Routing routing = router(x_MD);
  const nn::SortedTokens sorted = nn::sort_by_expert(routing.experts, config.experts);

  at::Tensor rows = permute(x_MD, sorted.choice, sorted.row);
  std::optional<at::Tensor> weights = routing.weights;
  if (config.weight_on == WeightOn::kInput) {
    const at::Tensor weights_R = routing.weights.flatten().index_select(0, sorted.choice);
    rows = rows * weights_R.unsqueeze(1).to(x.scalar_type());
    weights.reset();
  }
  rows = experts(rows, sorted.offs);
  at::Tensor y = unpermute(rows, sorted.choice, sorted.row, weights).view(x.sizes());
  if (!shared_expert.is_empty()) y = y + shared_expert(x);
  return {y, routing.aux_loss, sorted.tokens_per_expert};
}

}  // namespace octavo::models
