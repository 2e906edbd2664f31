#include "octavo/models/llama_initialise.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>

#include "octavo/models/llama.h"
#include "octavo/nn/parameters.h"

namespace octavo::models {
namespace {

LlamaConfig with_everything() {
  LlamaConfig config = llama_preset("debug-moe");  // a dense block, an MoE one, a shared expert
  config.dim = 96;
  return config;
}

TEST(LlamaInitialise, EveryParameterHasItsDeviation) {
  torch::manual_seed(3);
  const Llama model(with_everything());
  int matrices = 0;
  for (const auto& [name, tensor] : nn::unique_parameters(*model)) {
    if (tensor.dim() == 1) {
      const double start = name.find("expert_bias") == name.npos ? 1.0 : 0.0;
      EXPECT_TRUE((tensor == start).all().item<bool>()) << name;
      continue;
    }
    ++matrices;
    const bool residual = name.find("o_proj") != name.npos || name.find("down_proj") != name.npos;
    const double deviation = residual ? 0.02 / std::sqrt(2.0 * 2.0) : 0.02;
    // Six deviations of a sample's, and of its mean.
    const double root = std::sqrt(double(tensor.numel()));
    EXPECT_NEAR(tensor.std().item<double>(), deviation, 6 * deviation / std::sqrt(2.0) / root)
        << name;
    EXPECT_NEAR(tensor.mean().item<double>(), 0.0, 6 * deviation / root) << name;
  }
  EXPECT_EQ(matrices, 1 + 2 * 4 + 3 + 1 + 2 + 3 + 1);
}

TEST(LlamaInitialise, SameSeedSameWeightsAtAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  const auto make = [](std::uint64_t seed, int with_threads) {
    at::set_num_threads(with_threads);
    torch::manual_seed(seed);
    return nn::unique_parameters(*Llama(with_everything()));
  };
  const auto a = make(5, 1), b = make(5, 2), c = make(6, 1);
  at::set_num_threads(threads);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::equal(a[i].tensor, b[i].tensor)) << a[i].name;
    EXPECT_EQ(torch::equal(a[i].tensor, c[i].tensor), a[i].tensor.dim() == 1) << a[i].name;
  }
  // One after the other from one generator they differ.
  torch::manual_seed(5);
  const Llama first(with_everything()), second(with_everything());
  EXPECT_FALSE(torch::equal(first->lm_head->weight, second->lm_head->weight));
}

TEST(LlamaInitialise, ATiedWeightIsTheEmbeddings) {
  LlamaConfig config = llama_preset("debug");
  torch::manual_seed(5);
  const Llama untied(config);
  config.tied_head = true;
  torch::manual_seed(5);
  const Llama tied(config);
  EXPECT_TRUE(torch::equal(tied->lm_head->weight, untied->model->embed_tokens->weight));
  EXPECT_FALSE(torch::equal(untied->lm_head->weight, untied->model->embed_tokens->weight));
}

// A layer's weights do not depend on what else there is.
TEST(LlamaInitialise, FewerLayersAreTheFirstOfMore) {
  LlamaConfig config = llama_preset("debug");
  torch::manual_seed(5);
  const Llama two(config);
  config.layers = 1;
  torch::manual_seed(5);
  const Llama one(config);
  const auto q = [](const Llama& model) {
    return model->model->layers->at<LlamaBlockImpl>(0).self_attn->q_proj->weight;
  };
  EXPECT_TRUE(torch::equal(q(one), q(two)));
}

}  // namespace
}  // namespace octavo::models
