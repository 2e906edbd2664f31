#include "octavo/nn/router.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "octavo/nn/convert.h"
#include "octavo/nn/parameters.h"

namespace octavo::nn {
namespace {

RouterOptions router_options() { return {.features = 6, .experts = 5, .top_k = 2}; }

// What the options ask for, token by token in double.
struct ScalarRouting {
  std::vector<std::int64_t> experts;
  std::vector<double> weights;
};

std::vector<double> scalar_scores(const Router& router, const at::Tensor& token) {
  const RouterOptions& options = router->options;
  std::vector<double> scores;
  double sum = 0;
  for (std::int64_t e = 0; e < options.experts; ++e) {
    double logit = 0;
    for (std::int64_t d = 0; d < options.features; ++d) {
      logit += token[d].item<double>() * router->gate->weight[e][d].item<double>();
    }
    const bool softmax = options.score == RouterScore::kSoftmax;
    scores.push_back(softmax ? std::exp(logit) : 1 / (1 + std::exp(-logit)));
    sum += scores.back();
  }
  if (options.score == RouterScore::kSoftmax) {
    for (double& score : scores) score /= sum;
  }
  return scores;
}

ScalarRouting scalar_route(const Router& router, const at::Tensor& token) {
  const RouterOptions& options = router->options;
  const std::vector<double> scores = scalar_scores(router, token);
  const auto ranked = [&](std::int64_t e) {
    const double bias = router->expert_bias.defined() ? router->expert_bias[e].item<double>() : 0.0;
    return scores[std::size_t(e)] + bias;
  };
  ScalarRouting routing;
  for (std::int64_t e = 0; e < options.experts; ++e) routing.experts.push_back(e);
  std::stable_sort(routing.experts.begin(), routing.experts.end(),
                   [&](std::int64_t a, std::int64_t b) { return ranked(a) > ranked(b); });
  routing.experts.resize(std::size_t(options.top_k));
  double sum = 0;
  for (const std::int64_t e : routing.experts) {
    routing.weights.push_back(scores[std::size_t(e)]);
    sum += routing.weights.back();
  }
  for (double& weight : routing.weights) {
    weight *= options.scale / (options.normalise ? sum : 1.0);
  }
  return routing;
}

std::vector<RouterOptions> all_options() {
  std::vector<RouterOptions> all;
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    for (const bool normalise : {false, true}) {
      for (const LoadBalance balance :
           {LoadBalance::kNone, LoadBalance::kLoss, LoadBalance::kBias}) {
        RouterOptions options = router_options();
        options.score = score;
        options.normalise = normalise;
        options.balance = balance;
        options.scale = normalise ? 2.5 : 1.0;
        all.push_back(options);
        options.top_k = 1;
        all.push_back(options);
      }
    }
  }
  return all;
}

TEST(Router, ChoosesAndWeighsAsTheFormulaSays) {
  torch::manual_seed(5);
  for (const RouterOptions& options : all_options()) {
    Router router(options);
    torch::NoGradGuard no_grad;
    if (router->expert_bias.defined()) router->expert_bias.copy_(at::randn({5}) * 0.3);
    const at::Tensor x = torch::randn({17, 6}) * 2;
    const Routing routing = router(x);
    ASSERT_EQ(routing.weights.scalar_type(), at::kFloat);
    for (std::int64_t m = 0; m < 17; ++m) {
      const ScalarRouting expected = scalar_route(router, x[m]);
      for (std::int64_t j = 0; j < options.top_k; ++j) {
        EXPECT_EQ(routing.experts[m][j].item<std::int64_t>(), expected.experts[std::size_t(j)]);
        // fp32 softmax of a few logits.
        EXPECT_NEAR(routing.weights[m][j].item<double>(), expected.weights[std::size_t(j)], 2e-6);
      }
    }
  }
}

TEST(Router, TheBiasDecidesTheChoiceAndNotTheWeights) {
  RouterOptions options = router_options();
  options.balance = LoadBalance::kBias;
  Router router(options);
  {
    torch::NoGradGuard no_grad;
    router->expert_bias[3] = 10.0;
  }
  const at::Tensor x = torch::randn({9, 6});
  const Routing routing = router(x);
  EXPECT_TRUE(at::equal(routing.experts.select(1, 0), at::full({9}, 3, at::kLong)));
  const at::Tensor scores = at::linear(x, router->gate->weight).softmax(-1);
  EXPECT_TRUE(at::allclose(routing.weights.select(1, 0), scores.select(1, 3), 1e-6, 1e-7));
}

TEST(Router, AuxiliaryLossIsTheRateWhereTheLoadIsEvenAndGrowsWithCrowding) {
  RouterOptions options = router_options();
  options.experts = 4;
  options.features = 4;
  options.top_k = 1;
  options.balance = LoadBalance::kLoss;
  options.balance_rate = 0.5;
  Router router(options);
  {
    torch::NoGradGuard no_grad;
    router->gate->weight.copy_(at::eye(4) * 20);
  }
  const at::Tensor even = at::eye(4).repeat({3, 1});
  // Scores are near one-hot: mean score 1/4 of each, 3 tokens of 12 each.
  EXPECT_NEAR(router(even).aux_loss.item<double>(), 0.5, 1e-6);
  const at::Tensor crowded = at::eye(4).narrow(0, 0, 1).repeat({12, 1});
  EXPECT_NEAR(router(crowded).aux_loss.item<double>(), 0.5 * 4, 1e-6);
  // Its gradient moves logits of the crowded expert down.
  const at::Tensor mixed = torch::cat({crowded, even}) * 0.05;
  router(mixed).aux_loss.backward();
  const at::Tensor down = (router->gate->weight.grad() * at::full({1, 4}, 1.0)).sum(1);
  EXPECT_GT(router->gate->weight.grad()[0][0].item<double>(), 0.0);
  EXPECT_LT(router->gate->weight.grad()[1][0].item<double>(), 0.0);
  EXPECT_NEAR(down.sum().item<double>(), 0.0, 1e-6);  // a softmax moves no common shift
}

TEST(Router, BiasMovesBySignOfTheLoadErrorAfterAStep) {
  RouterOptions options = router_options();
  options.balance = LoadBalance::kBias;
  options.balance_rate = 0.25;
  Router router(options);
  router->record(at::tensor({1, 4, 0, 3, 2}, at::kLong));
  router->record(at::tensor({1, 4, 0, 1, 4}, at::kLong));  // together 2 8 0 4 6, mean 4
  EXPECT_TRUE(at::equal(router->load(), at::tensor({2, 8, 0, 4, 6}, at::kLong)));
  router->update_bias();
  EXPECT_TRUE(
      at::equal(router->expert_bias.detach(), at::tensor({0.25f, -0.25f, 0.25f, 0.f, -0.25f})));
  router->update_bias();  // nothing recorded since: nothing moves
  EXPECT_TRUE(
      at::equal(router->expert_bias.detach(), at::tensor({0.25f, -0.25f, 0.25f, 0.f, -0.25f})));
  EXPECT_FALSE(router->expert_bias.requires_grad());
  EXPECT_EQ(router->named_parameters()["expert_bias"].numel(), 5) << "it is saved";
}

TEST(Router, GateStaysInHighPrecision) {
  Router router(router_options());
  EXPECT_THROW(convert_to_float8_training(*router, {.recipe = {}}), c10::Error);
  EXPECT_FALSE(router->gate->recipe);
}

TEST(Router, ErrorsNameTheArgument) {
  RouterOptions options = router_options();
  options.top_k = 6;
  EXPECT_THROW(Router{options}, c10::Error);
  Router router(router_options());
  EXPECT_THROW(router(torch::randn({2, 3, 6})), c10::Error);
  EXPECT_EQ(router(at::empty({0, 6})).experts.sizes(), (std::vector<std::int64_t>{0, 2}));
}

}  // namespace
}  // namespace octavo::nn
