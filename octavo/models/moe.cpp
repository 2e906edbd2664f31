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
                                                             .initialise = false,
                                                             .tensor = tensor}));
  experts = register_module("experts", nn::Experts(nn::ExpertsOptions{.experts = config.experts,
                                                                      .features = dim,
                                                                      .hidden = config.hidden,
                                                                      .initialise = false,
                                                                      .tensor = tensor}));
  if (config.shared_hidden > 0) {
    shared_expert = register_module("shared_expert", LlamaMlp(dim, config.shared_hidden, tensor));
  }
}

MoeOutput MoeImpl::forward(const torch::Tensor& x) {
  const at::Tensor x_MD = x.reshape({-1, x.size(-1)});
  const nn::Routing routing = router(x_MD);
  const nn::SortedTokens sorted = nn::sort_by_expert(routing.experts, config.experts);

  // The weights go with the tokens one way or the other.
  const std::optional<at::Tensor> weights = routing.weights, none;
  const bool on_input = config.weight_on == WeightOn::kInput;
  at::Tensor rows = permute(x_MD, sorted.choice, sorted.row, on_input ? weights : none);
  rows = experts(rows, sorted.offs);
  at::Tensor y =
      unpermute(rows, sorted.choice, sorted.row, on_input ? none : weights).view(x.sizes());
  if (!shared_expert.is_empty()) y = y + shared_expert(x);
  return {y, routing.aux_loss, sorted.tokens_per_expert};
}

}  // namespace octavo::models
