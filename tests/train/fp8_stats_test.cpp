#include "octavo/train/fp8_stats.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "octavo/nn/convert.h"

namespace octavo::train {
namespace {

constexpr LayoutSpec kByRows = {.format = Format::kE4M3FN,
                                .granularity = Granularity::rowwise(),
                                .scale_rounding = ScaleRounding::kPowerOfTwo};

TEST(Fp8Stats, CountsByHand) {
  // amax 448: scale 1. Below 2^-10 e4m3fn has zero only (ties to even at 2^-10 itself); 17 lies
  // between 16 and 18 and becomes 16.
  const at::Tensor x =
      at::tensor({448.0f, -448.0f, std::ldexp(1.0f, -10), std::ldexp(1.0f, -9), 0.0f, 17.0f})
          .view({1, 6});
  const at::Tensor sums = operand_sums(x, kByRows);
  const OperandHealth health = operand_health(sums);
  EXPECT_DOUBLE_EQ(health.saturated, 2.0 / 6);
  EXPECT_DOUBLE_EQ(health.flushed, 1.0 / 6);
  const double signal = 2 * 448.0 * 448 + std::ldexp(1.0, -20) + std::ldexp(1.0, -18) + 17 * 17;
  const double noise = 1 + std::ldexp(1.0, -20);
  EXPECT_NEAR(health.snr_db, 10 * std::log10(signal / noise), 1e-4);
}

TEST(Fp8Stats, WhatIsNotFiniteDoesNotCount) {
  const float inf = std::numeric_limits<float>::infinity();
  at::Tensor x = at::randn({4, 32});
  x[1][3] = std::nanf("");
  x[2][5] = inf;
  const at::Tensor sums = operand_sums(x, kByRows);
  EXPECT_TRUE(at::isfinite(sums).all().item<bool>());
  // NaN takes its row with it, Inf makes zeros of the others of its row, times an infinite scale.
  EXPECT_EQ(sums[2].item<double>(), 64);
}

TEST(Fp8Stats, ExactValuesLoseNothingAndEmptyOnesAreNoNumbers) {
  const OperandHealth exact = operand_health(operand_sums(at::ones({3, 16}), kByRows));
  EXPECT_EQ(exact.snr_db, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(operand_health(operand_sums(at::zeros({3, 16}), kByRows)).snr_db));
  EXPECT_TRUE(std::isnan(operand_health(operand_sums(at::empty({0, 16}), kByRows)).snr_db));
}

TEST(Fp8Stats, SmallGradientsKeepTheirRatio) {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({8, 64});
  const double large = operand_health(operand_sums(x, kByRows)).snr_db;
  const double small = operand_health(operand_sums(x * std::ldexp(1.0, -38), kByRows)).snr_db;
  EXPECT_GT(large, 25);
  EXPECT_NEAR(large, small,
              1e-6);  // a power of two, which the scale takes up; amax stays above 1e-12
}

// Every granularity against the library's own dequantize().
TEST(Fp8Stats, ErrorsAreThoseOfDequantize) {
  torch::manual_seed(4);
  const at::Tensor x = at::randn({150, 200}) * at::randn({150, 1}).exp();
  for (const Granularity& granularity :
       {Granularity::tensorwise(), Granularity::rowwise(), Granularity::block_1x128(),
        Granularity::block_128x128(), Granularity::mx_1x32()}) {
    const LayoutSpec layout = {.format = Format::kE4M3FN, .granularity = granularity};
    const at::Tensor stored = dequantize(quantize_operand(x, {.rows = layout}).rows);
    const at::Tensor wide = x.to(at::kDouble);
    const double signal = wide.square().sum().item<double>();
    const double noise = (wide - stored.to(at::kDouble)).square().sum().item<double>();
    // Sums of 30,000 squares in another order and precision.
    EXPECT_NEAR(operand_health(operand_sums(x, layout)).snr_db, 10 * std::log10(signal / noise),
                1e-3)
        << to_string(granularity);
  }
}

models::Llama small(const char* recipe, bool experts = false) {
  models::LlamaConfig config;
  config.vocabulary = 64;
  config.dim = 64;
  config.layers = 2;
  config.heads = 2;
  config.kv_heads = 1;
  config.hidden = 96;
  if (experts)
    config.moe = {.experts = 3, .top_k = 2, .hidden = 32, .shared_hidden = 32, .dense_first = 1};
  torch::manual_seed(5);
  models::Llama llama(config, at::TensorOptions());
  nn::convert_to_float8_training(*llama,
                                 {.recipe = Recipe::parse(recipe), .filter_fqns = {"lm_head"}});
  return llama;
}

at::Tensor train_once(models::Llama& llama) {
  const at::Tensor tokens = at::arange(32, at::kLong).view({2, 16});
  const at::Tensor loss = llama->loss(tokens, tokens);
  loss.backward();
  return loss.detach();
}

TEST(Fp8Stats, EveryConvertedLayerAndNothingChanges) {
  for (const char* recipe : {"tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"}) {
    models::Llama plain = small(recipe), sampled = small(recipe);
    nlohmann::ordered_json layers;
    const at::Tensor expected = train_once(plain);
    {
      Fp8Sampler sampler(sampled);
      EXPECT_TRUE(at::equal(train_once(sampled), expected)) << recipe;
      layers = sampler.layers();
    }
    const auto a = plain->parameters(), b = sampled->parameters();
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i].grad(), b[i].grad()));
    ASSERT_EQ(layers.size(), 14u) << recipe << layers.dump();  // 7 linears in each of 2 blocks
    EXPECT_EQ(layers.begin().key(), "model.layers.0.self_attn.q_proj");
    for (const auto& [name, operands] : layers.items()) {
      for (const char* operand : {"x", "w", "dy"}) {
        ASSERT_TRUE(operands.contains(operand)) << name << operand;
        const double snr = operands[operand]["snr_db"];
        // e4m3 rounds by at most 1/16 of a number: 24 dB at least where nothing is too small.
        // e5m2 (tensorwise dy): 18 dB.
        EXPECT_TRUE(snr > 15 && snr < 60) << recipe << " " << name << operand << snr;
        EXPECT_TRUE(operands[operand]["saturated"] >= 0.0 && operands[operand]["saturated"] < 0.2);
        EXPECT_TRUE(operands[operand]["flushed"] >= 0.0 && operands[operand]["flushed"] < 0.2);
      }
    }
    // Nobody watches any more.
    EXPECT_EQ(nn::float8_layers(*sampled)[0].layer->observer, nullptr);
  }
}

TEST(Fp8Stats, ExpertsAndCheckpointedBlocks) {
  models::Llama llama = small("rowwise", /*experts=*/true);
  Fp8Sampler sampler(llama);
  train_once(llama);
  const nlohmann::ordered_json once = sampler.layers();
  for (const char* weight : {"gate_up_proj", "down_proj"}) {
    const auto& operands = once.at(std::string("model.layers.1.moe.experts.") + weight);
    EXPECT_EQ(operands.size(), 3u);
    EXPECT_TRUE(operands["w"]["snr_db"] > 20.0) << operands.dump();
  }
  // A checkpointed block runs twice and is sampled once: the same figures.
  models::Llama again = small("rowwise", /*experts=*/true);
  again->set_activation_checkpointing(models::ActivationCheckpointing::kBlocks);
  Fp8Sampler second(again);
  train_once(again);
  EXPECT_EQ(second.layers(), once);
}

TEST(Fp8Stats, WithoutGradientsNothingIsSampled) {
  models::Llama llama = small("rowwise");
  Fp8Sampler sampler(llama);
  const torch::NoGradGuard no_grad;
  llama->forward(at::zeros({1, 8}, at::kLong));
  EXPECT_TRUE(sampler.layers().empty());
}

}  // namespace
}  // namespace octavo::train
