#include "octavo/train/hugging_face_config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tests/error_of.h"

// That the numbers mean what transformers takes them for: test_hugging_face.py.
namespace octavo::train {
namespace {

using models::LlamaConfig;
using models::RopeStretch;

HuggingFaceConfig read_back(const nlohmann::ordered_json& config) {
  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) /
                                     ("config-" + std::to_string(::getpid()) + ".json");
  std::ofstream(file) << config.dump();
  HuggingFaceConfig read = read_hugging_face_config(file);
  std::filesystem::remove(file);
  return read;
}

// No field has the value that some type would take for it where it is left out.
LlamaConfig unusual() {
  LlamaConfig model;
  model.vocabulary = 100;
  model.dim = 48;
  model.layers = 5;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_size = 20;
  model.hidden = 80;
  model.max_sequence = 99;
  model.rope_theta = 12345;
  model.norm_eps = 3e-6;
  model.tied_head = true;
  return model;
}

LlamaConfig unusual_experts() {
  LlamaConfig model = unusual();
  model.moe.experts = 6;
  model.moe.top_k = 3;
  model.moe.hidden = 32;
  model.moe.balance_rate = 0.02;
  return model;
}

LlamaConfig mixtral() {
  LlamaConfig model = unusual_experts();
  model.hidden = model.moe.hidden;  // one field there
  model.moe.normalise = true;
  return model;
}

LlamaConfig qwen3_moe() {
  LlamaConfig model = unusual_experts();
  model.qk_norm = true;
  model.moe.every = 2;
  model.moe.dense_first = 1;
  return model;
}

LlamaConfig deepseek() {
  LlamaConfig model = unusual_experts();
  model.moe.shared_hidden = 3 * model.moe.hidden;
  model.moe.dense_first = 2;
  return model;
}

LlamaConfig dots1() {
  LlamaConfig model = deepseek();
  model.qk_norm = true;
  model.moe.score = nn::RouterScore::kSigmoid;
  model.moe.balance = nn::LoadBalance::kBias;
  model.moe.balance_rate = 1e-3;  // no field has it
  model.moe.normalise = true;
  model.moe.scale = 2.5;
  return model;
}

LlamaConfig changed(LlamaConfig model, const std::function<void(LlamaConfig&)>& change) {
  change(model);
  return model;
}

TEST(HuggingFaceConfig, EveryFieldComesBack) {
  const std::vector<std::pair<const char*, LlamaConfig>> cases = {
      {"llama", unusual()},
      {"llama", changed(unusual(), [](auto& m) { m.tied_head = false, m.head_size = 0; })},
      {"llama", changed(unusual(),
                        [](auto& m) {
                          m.rope_scaling.stretch = RopeStretch::kLinear;
                          m.rope_scaling.factor = 3;
                        })},
      {"llama", changed(unusual(),
                        [](auto& m) {
                          m.rope_scaling = {.stretch = RopeStretch::kLlama3,
                                            .factor = 5,
                                            .low_frequency_factor = 1.5,
                                            .high_frequency_factor = 3.5,
                                            .original_sequence = 77};
                        })},
      {"qwen2", changed(unusual(), [](auto& m) { m.attention_bias = true; })},
      {"qwen3", changed(unusual(), [](auto& m) { m.qk_norm = true; })},
      {"mixtral", mixtral()},
      {"qwen3_moe", qwen3_moe()},
      {"qwen3_moe", changed(qwen3_moe(), [](auto& m) { m.moe.normalise = true, m.moe.every = 1; })},
      {"deepseek", deepseek()},
      {"deepseek", changed(deepseek(), [](auto& m) { m.moe.normalise = true; })},
      {"dots1", dots1()},
      {"dots1", changed(dots1(), [](auto& m) { m.moe.normalise = false, m.moe.scale = 1; })},
  };
  for (const auto& [type, model] : cases) {
    const auto json = hugging_face_config(model, "bfloat16");
    EXPECT_EQ(json["torch_dtype"], "bfloat16");
    const HuggingFaceConfig read = read_back(json);
    EXPECT_EQ(read.model_type, type);
    EXPECT_TRUE(read.model == model) << json.dump(2);
  }
}

TEST(HuggingFaceConfig, WithoutALossThereIsNoneInTheFile) {
  for (LlamaConfig model : {mixtral(), qwen3_moe(), deepseek()}) {
    model.moe.balance = nn::LoadBalance::kNone;
    EXPECT_EQ(read_back(hugging_face_config(model, "float32")).model.moe.balance_rate, 0);
  }
}

TEST(HuggingFaceConfig, WhatNoTypeHasIsAnErrorThatNamesTheKey) {
  const std::vector<std::pair<const char*, LlamaConfig>> cases = {
      {"attention_bias", changed(unusual(), [](auto& m) { m.attention_bias = m.qk_norm = true; })},
      {"attention_bias", changed(mixtral(), [](auto& m) { m.attention_bias = true; })},
      {"weight_on",
       changed(mixtral(), [](auto& m) { m.moe.weight_on = models::WeightOn::kInput; })},
      {"qk_norm", changed(dots1(), [](auto& m) { m.qk_norm = false; })},
      {"balance", changed(dots1(), [](auto& m) { m.moe.balance = nn::LoadBalance::kLoss; })},
      {"moe_every", changed(dots1(), [](auto& m) { m.moe.every = 2; })},
      {"shared_hidden", changed(dots1(), [](auto& m) { m.moe.shared_hidden = 0; })},
      {"shared_hidden", changed(dots1(), [](auto& m) { m.moe.shared_hidden = 33; })},
      {"balance", changed(mixtral(), [](auto& m) { m.moe.balance = nn::LoadBalance::kBias; })},
      {"routed_scale", changed(mixtral(), [](auto& m) { m.moe.scale = 2; })},
      {"shared_hidden", changed(qwen3_moe(), [](auto& m) { m.moe.shared_hidden = 32; })},
      {"moe_every", changed(deepseek(), [](auto& m) { m.moe.every = 2; })},
      {"shared_hidden", changed(deepseek(), [](auto& m) { m.moe.shared_hidden = 33; })},
  };
  for (const auto& [key, model] : cases) {
    const std::string error = testing::error_of([&m = model] { hugging_face_type(m); });
    EXPECT_NE(error.find(std::string("export: ") + key + " is "), std::string::npos) << error;
  }
}

TEST(HuggingFaceConfig, WindowsThatEndNothingAreNone) {
  auto json = hugging_face_config(mixtral(), "float32");
  json["sliding_window"] = 99;  // max_sequence
  EXPECT_TRUE(read_back(json).model == mixtral());
  json["sliding_window"] = 98;
  EXPECT_NE(testing::error_of([&] { read_back(json); }).find("\"sliding_window\" is 98"),
            std::string::npos);
  json = hugging_face_config(dots1(), "float32");
  json["sliding_window"] = 8;
  json["max_window_layers"] = 5;  // from the layer after the last
  EXPECT_TRUE(read_back(json).model == dots1());
  json["max_window_layers"] = 4;
  EXPECT_NE(testing::error_of([&] { read_back(json); }).find("\"sliding_window\" is 8"),
            std::string::npos);
}

}  // namespace
}  // namespace octavo::train
