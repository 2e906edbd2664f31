#include "octavo/models/moe_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "octavo/models/llama_config.h"
#include "tests/error_of.h"

namespace octavo::models {
namespace {

using testing::error_of;

std::string layers_of(const MoeConfig& moe, std::int64_t layers) {
  std::string text;
  for (std::int64_t i = 0; i < layers; ++i) text += moe.is_moe_layer(i) ? 'e' : 'd';
  EXPECT_EQ(moe.moe_layers(layers), std::count(text.begin(), text.end(), 'e'));
  return text;
}

TEST(MoeConfig, WhichBlocksHaveExperts) {
  EXPECT_EQ(layers_of({}, 4), "dddd");
  EXPECT_EQ(layers_of({.experts = 4}, 4), "eeee");
  EXPECT_EQ(layers_of({.experts = 4, .every = 2}, 5), "deded");
  EXPECT_EQ(layers_of({.experts = 4, .every = 3}, 7), "ddedded");
  EXPECT_EQ(layers_of({.experts = 4, .dense_first = 3}, 5), "dddee");
  EXPECT_EQ(layers_of({.experts = 4, .every = 2, .dense_first = 2}, 6), "dddede");
}

TEST(MoeConfig, ErrorsNameTheFieldTheValueAndTheRule) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  struct Case {
    MoeConfig config;
    std::string text;
  };
  const Case cases[] = {
      {{.experts = -1}, "experts is -1; it must be at least 0"},
      {{.experts = 4, .top_k = 0}, "top_k is 0; it must be at least 1"},
      {{.experts = 4, .top_k = 5}, "top_k is 5; it must be at most experts, which is 4"},
      {{.experts = 4, .hidden = 0}, "expert_hidden is 0"},
      {{.experts = 4, .shared_hidden = -1}, "shared_hidden is -1"},
      {{.experts = 4, .every = 0}, "moe_every is 0"},
      {{.experts = 4, .dense_first = -1}, "dense_first is -1"},
      {{.experts = 4, .scale = nan}, "routed_scale is nan"},
      {{.experts = 4, .balance_rate = -1}, "balance_rate is -1"},
      {{.experts = 4, .every = 4}, "with 3 layers no block would have experts"},
      {{.experts = 4, .dense_first = 3}, "with 3 layers no block would have experts"},
  };
  for (const Case& c : cases) {
    const std::string error = error_of([&] { c.config.validate(3); });
    EXPECT_NE(error.find(c.text), std::string::npos) << error;
  }
  EXPECT_EQ(error_of([] { MoeConfig{.top_k = 9}.validate(3); }), "no error") << "dense";
  LlamaConfig model;
  model.moe = {.experts = 2, .top_k = 3};
  EXPECT_NE(error_of([&] { model.validate(); }).find("top_k is 3"), std::string::npos);
}

TEST(MoeConfig, Llama4DebugHasThePublishedSizes) {
  const LlamaConfig config = llama_preset("llama4-debug");
  EXPECT_EQ(config.dim, 5120);
  EXPECT_EQ(config.heads, 40);
  EXPECT_EQ(config.kv_heads, 8);
  EXPECT_EQ(config.rope_theta, 500000.0);
  EXPECT_EQ(config.max_sequence, 10485760);
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.moe.experts, 2);
  EXPECT_EQ(layers_of(config.moe, 2), "ee");
  // ffn_dim_multiplier 1.2 of 2/3 of 4 D, rounded up to a multiple of 2048; half of it, rounded up
  // likewise, for a token's expert and half for the shared one.
  const auto up = [](std::int64_t value) { return (value + 2047) / 2048 * 2048; };
  const std::int64_t wide = std::int64_t(1.2 * double(2 * 4 * 5120 / 3));
  EXPECT_EQ(config.hidden, up(wide));
  EXPECT_EQ(config.moe.hidden, up(wide / 2));
  EXPECT_EQ(config.moe.shared_hidden, up(wide / 2));
}

}  // namespace
}  // namespace octavo::models
