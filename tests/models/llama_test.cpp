#include "octavo/models/llama.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <cmath>
#include <string>
#include <vector>

#include "octavo/nn/parameters.h"
#include "tests/error_of.h"

namespace octavo::models {
namespace {

using testing::error_of;

LlamaConfig small() {
  return {.vocabulary = 61,
          .dim = 48,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .hidden = 80,
          .max_sequence = 40};
}

Llama seeded(const LlamaConfig& config) {
  torch::manual_seed(3);
  return Llama(config);
}

at::Tensor random_tokens(const LlamaConfig& config, std::int64_t batch, std::int64_t sequence) {
  return torch::randint(config.vocabulary, {batch, sequence}, at::kLong);
}

TEST(Llama, ParametersHaveHuggingFaceNamesAndShapes) {
  Llama model = seeded(small());
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> expected = {
      {"model.embed_tokens.weight", {61, 48}}};
  for (const std::string layer : {"0", "1"}) {
    const std::string block = "model.layers." + layer + ".";
    expected.push_back({block + "self_attn.q_proj.weight", {48, 48}});
    expected.push_back({block + "self_attn.k_proj.weight", {24, 48}});
    expected.push_back({block + "self_attn.v_proj.weight", {24, 48}});
    expected.push_back({block + "self_attn.o_proj.weight", {48, 48}});
    expected.push_back({block + "mlp.gate_proj.weight", {80, 48}});
    expected.push_back({block + "mlp.up_proj.weight", {80, 48}});
    expected.push_back({block + "mlp.down_proj.weight", {48, 80}});
    expected.push_back({block + "input_layernorm.weight", {48}});
    expected.push_back({block + "post_attention_layernorm.weight", {48}});
  }
  expected.push_back({"model.norm.weight", {48}});
  expected.push_back({"lm_head.weight", {61, 48}});

  std::vector<std::pair<std::string, std::vector<std::int64_t>>> got;
  for (const auto& item : model->named_parameters()) {
    got.push_back({item.key(), item.value().sizes().vec()});
  }
  EXPECT_EQ(got, expected);
  EXPECT_EQ(model->named_buffers().size(), 0u);
}

TEST(Llama, WeightsComeFromTheSeedWithTheStatedDeviations) {
  LlamaConfig config = small();
  config.dim = 256;
  config.hidden = 512;
  config.layers = 3;
  Llama a = seeded(config), b = seeded(config);
  const auto named_b = b->named_parameters();
  for (const auto& item : a->named_parameters()) {
    EXPECT_TRUE(at::equal(item.value(), named_b[item.key()])) << item.key();
    const std::string& name = item.key();
    if (item.value().dim() == 1) {
      EXPECT_TRUE(at::equal(item.value(), at::ones_like(item.value()))) << name;
      continue;
    }
    const bool residual = name.find("o_proj") != name.npos || name.find("down_proj") != name.npos;
    const double deviation = 0.02 / (residual ? std::sqrt(6.0) : 1.0);
    // The estimate from n numbers is off by about 1 / sqrt(2 n), under 0.6% here: 5 of them.
    const double relative = item.value().std().item<double>() / deviation - 1.0;
    EXPECT_TRUE(std::abs(relative) <= 5 / std::sqrt(2.0 * double(item.value().numel()))) << name;
  }
  torch::manual_seed(4);
  EXPECT_FALSE(at::equal(Llama(config)->lm_head->weight, a->lm_head->weight));
}

TEST(Llama, ShapesForAwkwardSizes) {
  Llama model = seeded(small());
  for (const std::int64_t batch : {1, 3}) {
    for (const std::int64_t sequence : {1, 2, 15, 40}) {
      const at::Tensor tokens = random_tokens(small(), batch, sequence);
      const at::Tensor logits = model(tokens);
      EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{batch, sequence, 61}));
      EXPECT_TRUE(logits.isfinite().all().item<bool>());
      EXPECT_EQ(model->loss(tokens, tokens).dim(), 0);
    }
  }
}

TEST(Llama, LossIsTheMeanCrossEntropyAndSkipsMinusHundred) {
  Llama model = seeded(small());
  const at::Tensor tokens = random_tokens(small(), 2, 7);
  at::Tensor targets = random_tokens(small(), 2, 7);
  const at::Tensor logits = model(tokens).detach().to(at::kDouble);
  const auto mean_loss = [&] {
    double sum = 0;
    std::int64_t count = 0;
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t t = 0; t < 7; ++t) {
        const std::int64_t target = targets[b][t].item<std::int64_t>();
        if (target == -100) continue;
        double total = 0;
        for (std::int64_t v = 0; v < 61; ++v) total += std::exp(logits[b][t][v].item<double>());
        sum += std::log(total) - logits[b][t][target].item<double>();
        ++count;
      }
    }
    return sum / double(count);
  };
  // Near ln 61 = 4.1, computed in fp32: a few of its ulps of 4.8e-7.
  EXPECT_TRUE(std::abs(model->loss(tokens, targets).item<double>() - mean_loss()) <= 2e-6);
  targets[1][3] = -100;
  targets[0][0] = -100;
  EXPECT_TRUE(std::abs(model->loss(tokens, targets).item<double>() - mean_loss()) <= 2e-6);
}

TEST(Llama, NoTokenSeesALaterOne) {
  Llama model = seeded(small());
  const at::Tensor tokens = random_tokens(small(), 2, 20);
  at::Tensor changed = tokens.clone();
  changed.narrow(1, 12, 8).copy_((tokens.narrow(1, 12, 8) + 1) % 61);
  const at::Tensor a = model(tokens), b = model(changed);
  // Masked positions enter with weight exactly 0.
  EXPECT_TRUE(at::equal(a.narrow(1, 0, 12), b.narrow(1, 0, 12)));
  EXPECT_FALSE(at::equal(a.select(1, 12), b.select(1, 12)));
}

TEST(Llama, Bfloat16IsNearFloat) {
  Llama model = seeded(small());
  const at::Tensor tokens = random_tokens(small(), 2, 9);
  const at::Tensor expected = model(tokens).detach();
  model->to(at::kBFloat16);
  const at::Tensor got = model(tokens).detach();
  ASSERT_EQ(got.scalar_type(), at::kBFloat16);
  // bf16 weights and activations: 2^-9 a rounding, some tens of them.
  const double error = ((got.to(at::kFloat) - expected).norm() / expected.norm()).item<double>();
  EXPECT_TRUE(error <= 0.03) << error;
  EXPECT_EQ(model->loss(tokens, tokens).scalar_type(), at::kFloat);
}

TEST(Llama, MetaModelsAllocateNothing) {
  Llama model(llama_preset("llama3-8b"), at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(item.value().is_meta()) << item.key();
    EXPECT_EQ(item.value().scalar_type(), at::kBFloat16) << item.key();
  }
}

TEST(Llama, ErrorsSayWhatCameAndWhatIsAllowed) {
  LlamaConfig config = small();
  config.kv_heads = 3;
  for (const std::string& error : {error_of([&] { Llama model(config); }), error_of([&] {
                                     LlamaModel model(config, at::TensorOptions());
                                   })}) {
    EXPECT_NE(error.find("kv_heads is 3"), std::string::npos) << error;
  }

  Llama model = seeded(small());
  const auto forward_error = [&](const at::Tensor& tokens) {
    return error_of([&] { model(tokens); });
  };
  EXPECT_NE(forward_error(at::zeros({2, 3}, at::kInt)).find("int64"), std::string::npos);
  EXPECT_NE(forward_error(at::zeros({3}, at::kLong)).find("(B, T)"), std::string::npos);
  EXPECT_NE(forward_error(at::zeros({1, 41}, at::kLong)).find("max_sequence = 40"),
            std::string::npos);
  EXPECT_NE(forward_error(at::zeros({2, 0}, at::kLong)).find("at least one"), std::string::npos);
  EXPECT_ANY_THROW(model(at::full({1, 3}, 61, at::kLong)));
  EXPECT_ANY_THROW(model(at::full({1, 3}, -1, at::kLong)));
  const at::Tensor tokens = at::zeros({2, 3}, at::kLong);
  EXPECT_NE(error_of([&] {
              model->loss(tokens, at::zeros({2, 2}, at::kLong));
            }).find("[2, 3]"),
            std::string::npos);
}

TEST(LlamaTiedHead, IsOneTensorUnderTwoNames) {
  LlamaConfig config = small();
  config.tied_head = true;
  Llama model = seeded(config);
  const auto check = [&] {
    const auto named = model->named_parameters();
    EXPECT_TRUE(named["lm_head.weight"].is_same(named["model.embed_tokens.weight"]));
    EXPECT_TRUE(model->lm_head->weight.is_same(model->model->embed_tokens->weight));
    const auto unique = nn::unique_parameters(*model);
    EXPECT_EQ(unique.size() + 1, named.size());
    EXPECT_EQ(unique.front().name, "model.embed_tokens.weight");
    EXPECT_EQ(unique.back().name, "model.norm.weight");
  };
  check();
  model->to(at::kBFloat16);
  check();
}

TEST(LlamaTiedHead, GradientIsTheSumOfBothUses) {
  LlamaConfig config = small();
  Llama untied = seeded(config);
  config.tied_head = true;
  Llama tied = seeded(config);
  {
    const torch::NoGradGuard no_grad;
    untied->lm_head->weight.copy_(tied->lm_head->weight);
  }
  const at::Tensor tokens = random_tokens(config, 2, 11), targets = random_tokens(config, 2, 11);
  const at::Tensor loss = tied->loss(tokens, targets);
  EXPECT_TRUE(at::equal(loss, untied->loss(tokens, targets)));
  loss.backward();
  untied->loss(tokens, targets).backward();
  const at::Tensor expected =
      untied->lm_head->weight.grad() + untied->model->embed_tokens->weight.grad();
  // The same two tensors added once, in either order.
  EXPECT_TRUE(at::equal(tied->lm_head->weight.grad(), expected));
  EXPECT_FALSE(at::equal(untied->model->embed_tokens->weight.grad(), expected));
}

TEST(LlamaTiedHead, IsSteppedOnce) {
  LlamaConfig config = small();
  config.tied_head = true;
  Llama model = seeded(config);
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : nn::unique_parameters(*model)) tensors.push_back(parameter.tensor);
  const at::Tensor before = model->lm_head->weight.detach().clone();
  const double lr = 1e-3;
  torch::optim::AdamW optimizer(tensors, torch::optim::AdamWOptions(lr).weight_decay(0));
  const at::Tensor tokens = random_tokens(config, 2, 11);
  model->loss(tokens, tokens).backward();
  optimizer.step();
  // AdamW's first step moves by lr * g / (|g| + eps), at most lr; twice would be near 2 lr. The
  // weight's fp32 rounding (values under 0.1) adds up to 4e-9.
  const double moved = (model->lm_head->weight - before).abs().max().item<double>();
  EXPECT_TRUE(moved <= lr + 1e-8 && moved >= 0.9 * lr) << moved;
}

}  // namespace
}  // namespace octavo::models
