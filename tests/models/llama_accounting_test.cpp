#include "octavo/models/llama_accounting.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "octavo/nn/parameters.h"

namespace octavo::models {
namespace {

std::vector<LlamaConfig> configs() {
  std::vector<LlamaConfig> all;
  for (const auto& name : llama_preset_names()) all.push_back(llama_preset(name));
  all.push_back(
      {.vocabulary = 33, .dim = 30, .layers = 3, .heads = 3, .kv_heads = 1, .hidden = 47});
  all.push_back(all.back());
  all.back().tied_head = true;
  return all;
}

Llama meta_model(const LlamaConfig& config) { return Llama(config, at::TensorOptions(at::kMeta)); }

TEST(LlamaAccounting, ParametersAreThoseOfTheModel) {
  for (const LlamaConfig& config : configs()) {
    ParameterCount expected;
    for (const auto& [name, tensor] : nn::unique_parameters(*meta_model(config))) {
      if (name == "model.embed_tokens.weight") {
        expected.embedding += tensor.numel();
      } else if (name == "lm_head.weight") {
        expected.head += tensor.numel();
      } else if (name.find("router") != name.npos) {
        expected.routers += tensor.numel();
      } else if (name.find("moe.experts") != name.npos) {
        expected.experts += tensor.numel();
        expected.active_experts += tensor.numel() / config.moe.experts * config.moe.top_k;
      } else {
        (tensor.dim() == 1 ? expected.norms : expected.linears) += tensor.numel();
      }
    }
    const ParameterCount got = parameter_count(config);
    EXPECT_EQ(got.embedding, expected.embedding);
    EXPECT_EQ(got.linears, expected.linears);
    EXPECT_EQ(got.norms, expected.norms);
    EXPECT_EQ(got.head, expected.head);
    EXPECT_EQ(got.routers, expected.routers);
    EXPECT_EQ(got.experts, expected.experts);
    EXPECT_EQ(got.active_experts, expected.active_experts);
    EXPECT_EQ(got.total(), expected.embedding + expected.linears + expected.routers +
                               expected.experts + expected.norms + expected.head);
    EXPECT_EQ(got.active(), got.total() - got.experts + got.active_experts);
  }
}

TEST(LlamaAccounting, PublishedCounts) {
  EXPECT_EQ(parameter_count(llama_preset("llama3-8b")).total(), 8030261248);
  EXPECT_EQ(parameter_count(llama_preset("llama3-1b")).total(), 1235814400);
  // Qwen's own counts less the biases of q, k and v, which these have not.
  EXPECT_EQ(parameter_count(llama_preset("qwen2.5-1.5b")).total(),
            1543714304 - 28 * (1536 + 2 * 256));
  EXPECT_EQ(parameter_count(llama_preset("qwen2.5-7b")).total(),
            7615616512 - 28 * (3584 + 2 * 512));
  // DeepSeek's own figures: 16.4B in all, 2.8B of them active.
  const ParameterCount deepseek = parameter_count(llama_preset("deepseek-moe-16b"));
  EXPECT_NEAR(double(deepseek.total()), 16.4e9, 0.05e9);
  EXPECT_NEAR(double(deepseek.active()), 2.8e9, 0.05e9);
  const std::int64_t bytes_model = parameter_count(llama_preset("100m")).total();
  EXPECT_TRUE(bytes_model > 95e6 && bytes_model < 105e6) << bytes_model;
}

TEST(LlamaAccounting, FlopsAreThoseOfTheProducts) {
  for (const LlamaConfig& config : configs()) {
    for (const std::int64_t sequence : {1, 2, 127}) {
      // Every linear: y, dx and dw, a multiply-add for each weight and token.
      double linears = 0, experts = 0, head = 0;
      const Llama model = meta_model(config);
      for (const auto& [fqn, linear] : named_linears(*model)) {
        (fqn == "lm_head" ? head : linears) += 3 * 2.0 * double(linear->weight.numel());
      }
      for (const auto& [name, tensor] : nn::unique_parameters(*model)) {
        if (name.find("moe.experts") == name.npos) continue;
        experts += 3 * 2.0 * double(tensor.numel()) * double(config.moe.top_k) /
                   double(config.moe.experts);
      }
      // Attention: each query meets itself and the earlier keys, once for the scores and once for
      // the values; backward is twice the forward.
      double attention = 0;
      for (std::int64_t t = 0; t < sequence; ++t) {
        attention += 3.0 * 2 * 2 * double(t + 1) * double(config.dim) * double(config.layers);
      }
      const FlopsPerToken got = flops_per_token(config, sequence);
      EXPECT_DOUBLE_EQ(got.linears, linears);
      EXPECT_DOUBLE_EQ(got.experts, experts);
      EXPECT_DOUBLE_EQ(got.head, head);
      EXPECT_DOUBLE_EQ(got.attention, attention / double(sequence));
      EXPECT_DOUBLE_EQ(got.total(), linears + experts + head + attention / double(sequence));
    }
  }
  EXPECT_THROW(flops_per_token({}, 0), c10::Error);
  EXPECT_THROW(flops_per_token({.dim = 0}, 8), c10::Error);
}

TEST(LlamaAccounting, MemoryIsBytesOfParametersGradientsAndTwoMoments) {
  const MemoryEstimate fp32 = memory_estimate(llama_preset("llama3-8b"), at::kFloat);
  EXPECT_EQ(fp32.parameters, 4 * 8030261248);
  EXPECT_EQ(fp32.gradients, 4 * 8030261248);
  EXPECT_EQ(fp32.optimizer, 8 * 8030261248);
  EXPECT_EQ(fp32.total(), 16 * 8030261248);
  EXPECT_EQ(memory_estimate(llama_preset("llama3-8b"), at::kBFloat16).total(), 8 * 8030261248);
  // 2 bytes each of weight and gradient, 4 each of master and two moments.
  EXPECT_EQ(
      memory_estimate(llama_preset("llama3-8b"), at::kBFloat16, /*master_weights=*/true).total(),
      16 * 8030261248);
}

TEST(LlamaAccounting, ModulesAreListedInStateDictOrder) {
  LlamaConfig config = llama_preset("debug");
  config.layers = 1;
  config.tied_head = true;
  Llama model = meta_model(config);
  model->model->layers->at<LlamaBlockImpl>(0).mlp->up_proj->recipe = Recipe{};
  struct Expected {
    std::string fqn, kind;
    std::vector<std::int64_t> shape;
    std::int64_t parameters;
    std::string recipe;
  };
  const std::string block = "model.layers.0.";
  const std::vector<Expected> expected = {
      {"model.embed_tokens", "Embedding", {256, 64}, 16384, ""},
      {block + "self_attn.q_proj", "Linear", {64, 64}, 4096, ""},
      {block + "self_attn.k_proj", "Linear", {32, 64}, 2048, ""},
      {block + "self_attn.v_proj", "Linear", {32, 64}, 2048, ""},
      {block + "self_attn.o_proj", "Linear", {64, 64}, 4096, ""},
      {block + "mlp.gate_proj", "Linear", {192, 64}, 12288, ""},
      {block + "mlp.up_proj", "Linear", {192, 64}, 12288, "rowwise"},
      {block + "mlp.down_proj", "Linear", {64, 192}, 12288, ""},
      {block + "input_layernorm", "RMSNorm", {64}, 64, ""},
      {block + "post_attention_layernorm", "RMSNorm", {64}, 64, ""},
      {"model.norm", "RMSNorm", {64}, 64, ""},
      {"lm_head", "Linear", {256, 64}, 0, ""},  // the embedding's
  };
  const auto rows = list_modules(*model);
  ASSERT_EQ(rows.size(), expected.size());
  std::vector<std::string> linears;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].fqn, expected[i].fqn);
    EXPECT_EQ(rows[i].kind, expected[i].kind) << rows[i].fqn;
    EXPECT_EQ(rows[i].shape, expected[i].shape) << rows[i].fqn;
    EXPECT_EQ(rows[i].parameters, expected[i].parameters) << rows[i].fqn;
    EXPECT_EQ(rows[i].recipe, expected[i].recipe) << rows[i].fqn;
    total += rows[i].parameters;
    if (rows[i].kind == "Linear") linears.push_back(rows[i].fqn);
  }
  EXPECT_EQ(total, parameter_count(config).total());
  std::vector<std::string> named;
  for (const auto& [fqn, linear] : named_linears(*model)) named.push_back(fqn);
  EXPECT_EQ(named, linears);
}

TEST(LlamaAccounting, ModulesOfAnMoeBlockAreListed) {
  Llama model = meta_model(llama_preset("debug-moe"));
  model->model->layers->at<LlamaBlockImpl>(1).moe->experts->recipe = Recipe{};
  std::vector<ModuleRow> rows;
  std::int64_t total = 0;
  for (const ModuleRow& row : list_modules(*model)) {
    total += row.parameters;
    if (row.fqn.find("layers.1.moe") != row.fqn.npos) rows.push_back(row);
  }
  EXPECT_EQ(total, parameter_count(llama_preset("debug-moe")).total());
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[0].kind, "Router");
  EXPECT_EQ(rows[0].shape, (std::vector<std::int64_t>{4}));
  EXPECT_FALSE(rows[0].converts);
  EXPECT_EQ(rows[1].fqn, "model.layers.1.moe.router.gate");
  EXPECT_EQ(rows[1].kind, "Linear");
  EXPECT_EQ(rows[2].kind, "Experts");
  EXPECT_EQ(rows[2].shape, (std::vector<std::int64_t>{4, 64, 64}));
  EXPECT_EQ(rows[2].parameters, 4 * 3 * 64 * 64);
  EXPECT_EQ(rows[2].recipe, "rowwise");
  EXPECT_TRUE(rows[2].converts);
  EXPECT_EQ(rows[3].fqn, "model.layers.1.moe.shared_expert.gate_proj");
}

}  // namespace
}  // namespace octavo::models
