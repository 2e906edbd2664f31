// The Llama with FP8 linears and with recomputed blocks: conversion and checkpointing meet the
// model here; what each does by itself is tested in tests/nn.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "octavo/kernels/counter.h"
#include "octavo/models/generate.h"
#include "octavo/models/llama.h"
#include "octavo/models/llama_accounting.h"
#include "octavo/nn/convert.h"
#include "octavo/nn/fusion.h"
#include "octavo/nn/parameters.h"

namespace octavo::models {
namespace {

enum class Head { kOwn, kTied };

LlamaConfig small_with(Head head) {
  return {.vocabulary = 61,
          .dim = 48,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .hidden = 80,
          .max_sequence = 64,
          .tied_head = head == Head::kTied};
}

// "" leaves the model in high precision.
Llama make_model(Head head, const std::string& recipe) {
  torch::manual_seed(3);
  Llama model(small_with(head));
  if (!recipe.empty()) {
    nn::convert_to_float8_training(*model,
                                   {.recipe = Recipe::parse(recipe), .filter_fqns = {"lm_head"}});
  }
  return model;
}

struct Outcome {
  std::vector<double> losses;
  std::vector<std::pair<std::string, at::Tensor>> gradients;  // of the last step
};

// AdamW on one fixed batch.
Outcome train(Llama& model, int steps) {
  torch::manual_seed(9);
  const at::Tensor text = torch::randint(model->config.vocabulary, {3, 18}, at::kLong);
  const at::Tensor tokens = text.narrow(1, 0, 17), targets = text.narrow(1, 1, 17);
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : nn::unique_parameters(*model)) tensors.push_back(parameter.tensor);
  torch::optim::AdamW optimizer(tensors, torch::optim::AdamWOptions(3e-3));
  Outcome run;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(tokens, targets);
    loss.backward();
    optimizer.step();
    run.losses.push_back(loss.item<double>());
  }
  for (const auto& [name, tensor] : nn::unique_parameters(*model)) {
    run.gradients.emplace_back(name, tensor.grad().clone());
  }
  return run;
}

// Norms that quantise, q, k and v together, the network as one operation: on the CPU the bits of
// layer by layer.
TEST(LlamaFloat8, FusedHasTheBitsOfLayerByLayer) {
  std::vector<std::string> recipes = recipe_names();
  recipes.push_back("rowwise(flavour=fnuz)");
  for (const std::string& recipe : recipes) {
    for (const auto mode : {ActivationCheckpointing::kNone, ActivationCheckpointing::kSelective}) {
      Llama fused = make_model(Head::kOwn, recipe), apart = make_model(Head::kOwn, recipe);
      nn::set_fusion(*apart, false);
      for (Llama model : {fused, apart}) model->set_activation_checkpointing(mode);
      const Outcome got = train(fused, 2), want = train(apart, 2);
      EXPECT_EQ(got.losses, want.losses) << recipe;
      for (std::size_t i = 0; i < got.gradients.size(); ++i) {
        EXPECT_TRUE(at::equal(got.gradients[i].second, want.gradients[i].second))
            << recipe << " " << got.gradients[i].first;
      }
    }
  }
}

// The same on a GPU, in bf16 and at a size whose operands do not fit its registers: every loss of a
// forward pass by its bits; gradients but for roundings of sums that a product adds.
TEST(LlamaFloat8, FusedIsLayerByLayerOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU on this machine";
  const LlamaConfig config{.vocabulary = 512,
                           .dim = 1024,
                           .layers = 2,
                           .heads = 8,
                           .kv_heads = 2,
                           .hidden = 2816,
                           .max_sequence = 1024};
  for (const std::string& recipe : recipe_names()) {
    Outcome results[2];
    for (const bool fusion : {false, true}) {
      torch::manual_seed(3);
      Llama model(config, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
      nn::convert_to_float8_training(*model,
                                     {.recipe = Recipe::parse(recipe), .filter_fqns = {"lm_head"}});
      nn::set_fusion(*model, fusion);
      const at::Tensor text =
          torch::randint(config.vocabulary, {10, 1025}, at::TensorOptions(at::kLong)).to(at::kCUDA);
      const at::Tensor loss =
          model->loss(text.narrow(1, 0, 1024).contiguous(), text.narrow(1, 1, 1024).contiguous());
      loss.backward();
      Outcome& result = results[fusion];
      result.losses = {loss.item<double>()};
      for (const auto& [name, tensor] : nn::unique_parameters(*model)) {
        result.gradients.emplace_back(name, tensor.grad().to(at::kFloat));
      }
    }
    EXPECT_EQ(results[1].losses, results[0].losses) << recipe;
    for (std::size_t i = 0; i < results[0].gradients.size(); ++i) {
      const auto& [name, want] = results[0].gradients[i];
      // A rounding to bf16 (2^-9) of each dx makes a percent of its FP8 values others, by a step
      // of up to 1/4, in each of two blocks.
      const double error = (results[1].gradients[i].second - want).norm().item<double>();
      EXPECT_LE(error, 0.1 * want.norm().item<double>()) << recipe << " " << name;
    }
  }
}

TEST(LlamaCheckpointing, HasThePlainModelsBits) {
  for (const Head head : {Head::kOwn, Head::kTied}) {
    for (const std::string recipe : {"", "rowwise", "mxfp8"}) {
      Llama plain = make_model(head, recipe);
      const Outcome expected = train(plain, 3);
      for (const auto mode :
           {ActivationCheckpointing::kSelective, ActivationCheckpointing::kBlocks}) {
        Llama checkpointed = make_model(head, recipe);
        checkpointed->set_activation_checkpointing(mode);
        const Outcome got = train(checkpointed, 3);
        EXPECT_EQ(got.losses, expected.losses) << recipe;
        ASSERT_EQ(got.gradients.size(), expected.gradients.size());
        for (std::size_t i = 0; i < got.gradients.size(); ++i) {
          EXPECT_TRUE(at::equal(got.gradients[i].second, expected.gradients[i].second))
              << recipe << " " << got.gradients[i].first;
        }
      }
    }
  }
}

TEST(LlamaCheckpointing, RecomputesEveryBlockOnce) {
  const auto casts_of_a_step = [](ActivationCheckpointing mode) {
    Llama model = make_model(Head::kOwn, "rowwise");
    model->set_activation_checkpointing(mode);
    const std::uint64_t before = kernels::counters().quantize;
    train(model, 1);
    return kernels::counters().quantize - before;
  };
  const std::uint64_t plain = casts_of_a_step(ActivationCheckpointing::kNone);
  Llama model = make_model(Head::kOwn, "rowwise");
  const std::uint64_t before = kernels::counters().quantize;
  {
    const torch::NoGradGuard no_grad;
    model(at::zeros({1, 17}, at::kLong));
  }
  // Without autograd a forward pass casts rows only, as the first pass of a checkpointed block.
  const std::uint64_t forward = kernels::counters().quantize - before;
  EXPECT_GT(forward, 0u);
  EXPECT_EQ(casts_of_a_step(ActivationCheckpointing::kBlocks), plain + forward);
}

TEST(LlamaFloat8, EveryRecipeLearnsLikeHighPrecision) {
  const int steps = 25;
  Llama plain = make_model(Head::kOwn, "");
  const Outcome expected = train(plain, steps);
  ASSERT_LT(expected.losses.back(), 0.75 * expected.losses.front());
  std::vector<std::string> recipes = recipe_names();
  recipes.push_back("rowwise(flavour=fnuz)");
  recipes.push_back("tensorwise(flavour=fnuz)");
  for (const std::string& recipe : recipes) {
    Llama model = make_model(Head::kOwn, recipe);
    for (const auto& [fqn, linear] : named_linears(*model)) {
      EXPECT_EQ(linear->recipe.has_value(), fqn != "lm_head") << fqn;
    }
    const Outcome run = train(model, steps);
    // The first loss is a forward pass of the same weights: at this size e4m3's relative error of
    // up to 2^-4 an element moves the logits, which start near 0, by little.
    EXPECT_TRUE(std::abs(run.losses.front() / expected.losses.front() - 1) <= 0.01)
        << recipe << ": " << run.losses.front() << " for " << expected.losses.front();
    // Learning one batch by heart is steep, so trajectories part faster than in training.
    EXPECT_TRUE(std::abs(run.losses.back() / expected.losses.back() - 1) <= 0.1)
        << recipe << ": " << run.losses.back() << " for " << expected.losses.back();
    // It is another computation, not a silent no-op.
    EXPECT_NE(run.losses.back(), expected.losses.back()) << recipe;
  }
}

TEST(LlamaFloat8, TiedHeadStaysOneTensorWhenConverted) {
  torch::manual_seed(3);
  Llama model(small_with(Head::kTied));
  nn::convert_to_float8_training(*model, {.recipe = Recipe::parse("rowwise")});
  ASSERT_TRUE(model->lm_head->recipe.has_value());
  EXPECT_TRUE(model->lm_head->weight.is_same(model->model->embed_tokens->weight));
  const std::size_t unique = nn::unique_parameters(*model).size();
  EXPECT_EQ(unique + 1, model->named_parameters().size());

  // Both uses add to one gradient: without the head's share, the tokens that are not in the batch
  // would have a gradient of zero.
  const at::Tensor tokens = at::zeros({1, 5}, at::kLong);
  model->loss(tokens, tokens).backward();
  const at::Tensor gradient = model->lm_head->weight.grad();
  EXPECT_TRUE(gradient[40].abs().sum().item<double>() > 0);
  const Outcome run = train(model, 10);
  EXPECT_LT(run.losses.back(), run.losses.front());
}

TEST(LlamaFloat8, GeneratesFromAConvertedModel) {
  Llama model = make_model(Head::kOwn, "rowwise");
  const at::Tensor prompt = at::zeros({1, 3}, at::kLong);
  const GenerateOptions options{.new_tokens = 8, .temperature = 0};
  const at::Tensor text = generate(*model, prompt, options);
  EXPECT_EQ(text.sizes(), (std::vector<std::int64_t>{1, 11}));
  EXPECT_TRUE(at::equal(text, generate(*model, prompt, options)));
}

}  // namespace
}  // namespace octavo::models
