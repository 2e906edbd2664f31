#include "octavo/nn/router.h"

#include <ATen/Functions.h>

namespace octavo::nn {

RouterImpl::RouterImpl(const RouterOptions& options) : options(options) {
  TORCH_CHECK(options.top_k >= 1 && options.top_k <= options.experts,
              "Router: top_k: expected 1 to the number of experts, ", options.experts, ", got ",
              options.top_k, "; lower it or add experts");
  TORCH_CHECK(options.features >= 1, "Router: features: expected at least 1, got ",
              options.features, "; give the width of a token");
  gate = register_module("gate", Linear(LinearOptions{.in_features = options.features,
                                                      .out_features = options.experts,
                                                      .initialise = options.initialise,
                                                      .high_precision = true,
                                                      .tensor = options.tensor}));
  const at::TensorOptions of_experts = options.tensor.dtype(at::kFloat);
  if (options.balance == LoadBalance::kBias) {
    expert_bias = register_parameter("expert_bias", torch::zeros({options.experts}, of_experts),
                                     /*requires_grad=*/false);
  }
}

Routing RouterImpl::forward(const torch::Tensor& x) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == options.features, "Router: x: expected (M, ",
              options.features, "), got ", x.sizes(), "; flatten the tokens' dimensions");
  const at::Tensor logits = gate(x).to(at::kFloat);  // (M, E)
  const at::Tensor scores =
      options.score == RouterScore::kSoftmax ? logits.softmax(-1) : logits.sigmoid();
  // The choice has no gradient; that of the weights goes through the scores.
  const at::Tensor ranked = expert_bias.defined() ? scores.detach() + expert_bias : scores.detach();
  Routing routing;
  routing.experts = std::get<1>(ranked.topk(options.top_k, /*dim=*/-1));
  routing.weights = scores.gather(-1, routing.experts);
  if (options.normalise) {
    // Sigmoids of very unlikely experts can all be 0.
    routing.weights = routing.weights / (routing.weights.sum(-1, /*keepdim=*/true) + 1e-20);
  }
  if (options.scale != 1.0) routing.weights = routing.weights * options.scale;

  if (options.balance != LoadBalance::kLoss || x.size(0) == 0) {
    routing.aux_loss = at::zeros({}, logits.options());
    return routing;
  }
  const at::Tensor chosen = routing.experts.flatten();
  const at::Tensor tokens = at::zeros({options.experts}, logits.options())
                                .scatter_add_(0, chosen, at::ones_like(chosen, at::kFloat));
  const at::Tensor shares = options.score == RouterScore::kSoftmax
                                ? scores
                                : scores / (scores.sum(-1, /*keepdim=*/true) + 1e-20);
  const double factor = options.balance_rate * double(options.experts) / double(chosen.size(0));
  routing.aux_loss = (tokens * shares.mean(0)).sum() * factor;
  return routing;
}

void RouterImpl::record(const torch::Tensor& tokens_per_expert) {
  torch::NoGradGuard no_grad;
  load_ = load_.defined() ? load_ + tokens_per_expert : tokens_per_expert;
}

void RouterImpl::update_bias(const torch::Tensor& taken) {
  if (expert_bias.defined() && load_.defined()) {
    torch::NoGradGuard no_grad;
    const at::Tensor tokens = load_.to(at::kFloat);
    const at::Tensor direction = (tokens.mean() - tokens).sign();
    expert_bias.add_(taken.defined() ? direction * taken : direction, options.balance_rate);
  }
  forget_load();
}

}  // namespace octavo::nn
