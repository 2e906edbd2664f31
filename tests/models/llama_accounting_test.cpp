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
      } else {
        (tensor.dim() == 1 ? expected.norms : expected.linears) += tensor.numel();
      }
    }
    const ParameterCount got = parameter_count(config);
    EXPECT_EQ(got.embedding, expected.embedding);
    EXPECT_EQ(got.linears, expected.linears);
    EXPECT_EQ(got.norms, expected.norms);
    EXPECT_EQ(got.head, expected.head);
    EXPECT_EQ(got.total(), expected.embedding + expected.linears + expected.norms + expected.head);
  }
}

TEST(LlamaAccounting, PublishedCounts) {
  EXPECT_EQ(parameter_count(llama_preset("llama3-8b")).total(), 8030261248);
  EXPECT_EQ(parameter_count(llama_preset("llama3-1b")).total(), 1235814400);
  const std::int64_t bytes_model = parameter_count(llama_preset("100m")).total();
  EXPECT_TRUE(bytes_model > 95e6 && bytes_model < 105e6) << bytes_model;
}

TEST(LlamaAccounting, FlopsAreThoseOfTheProducts) {
  for (const LlamaConfig& config : configs()) {
    for (const std::int64_t sequence : {1, 2, 127}) {
      // Every linear: y, dx and dw, a multiply-add for each weight and token.
      double linears = 0, head = 0;
      for (const auto& [fqn, linear] : named_linears(*meta_model(config))) {
        (fqn == "lm_head" ? head : linears) += 3 * 2.0 * double(linear->weight.numel());
      }
      // Attention: each query meets itself and the earlier keys, once for the scores and once for
      // the values; backward is twice the forward.
      double attention = 0;
      for (std::int64_t t = 0; t < sequence; ++t) {
        attention += 3.0 * 2 * 2 * double(t + 1) * double(config.dim) * double(config.layers);
      }
      const FlopsPerToken got = flops_per_token(config, sequence);
      EXPECT_DOUBLE_EQ(got.linears, linears);
      EXPECT_DOUBLE_EQ(got.head, head);
      EXPECT_DOUBLE_EQ(got.attention, attention / double(sequence));
      EXPECT_DOUBLE_EQ(got.total(), linears + head + attention / double(sequence));
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

}  // namespace
}  // namespace octavo::models
