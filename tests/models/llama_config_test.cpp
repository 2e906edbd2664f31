#include "octavo/models/llama_config.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "octavo/models/llama_accounting.h"

namespace octavo::models {
namespace {

std::string validation_error(const LlamaConfig& config) {
  try {
    config.validate();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(LlamaConfig, EveryPresetIsValidAndTheyGrow) {
  std::int64_t smaller = 0;
  bool moe = false;  // dense ones come first, each kind by size
  for (const auto& name : llama_preset_names()) {
    const LlamaConfig config = llama_preset(name);
    EXPECT_EQ(validation_error(config), "") << name;
    if (!moe && config.moe.experts > 0) smaller = 0;
    EXPECT_LE(moe, config.moe.experts > 0) << name;
    moe = config.moe.experts > 0;
    const std::int64_t size = parameter_count(config).total();
    EXPECT_GT(size, smaller) << name << " is listed after a larger one";
    smaller = size;
  }
  EXPECT_EQ(llama_preset_names().front(), "debug");
  EXPECT_EQ(llama_preset_names().back(), "deepseek-moe-16b");
}

TEST(LlamaConfig, Llama38bHasItsPublishedSizes) {
  const LlamaConfig config = llama_preset("llama3-8b");
  EXPECT_EQ(config.vocabulary, 128256);
  EXPECT_EQ(config.dim, 4096);
  EXPECT_EQ(config.layers, 32);
  EXPECT_EQ(config.heads, 32);
  EXPECT_EQ(config.kv_heads, 8);
  EXPECT_EQ(config.head_dim(), 128);
  EXPECT_EQ(config.kv_dim(), 1024);
  EXPECT_EQ(config.hidden, 14336);
  EXPECT_EQ(config.max_sequence, 8192);
  EXPECT_EQ(config.rope_theta, 500000.0);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_FALSE(config.tied_head);
}

TEST(LlamaConfig, AnUnknownPresetListsTheKnownOnes) {
  try {
    llama_preset("llama3-9b");
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_NE(message.find("'llama3-9b'"), std::string::npos) << message;
    for (const auto& name : llama_preset_names()) {
      EXPECT_NE(message.find(name), std::string::npos) << message;
    }
  }
}

TEST(LlamaConfig, ErrorsNameTheFieldTheValueAndTheRule) {
  struct Case {
    LlamaConfig config;
    std::string field, value, rule;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Case cases[] = {
      {{.vocabulary = 0}, "vocabulary", "0", "at least 1"},
      {{.dim = -4}, "dim", "-4", "at least 1"},
      {{.layers = 0}, "layers", "0", "at least 1"},
      {{.heads = 0}, "heads", "0", "at least 1"},
      {{.kv_heads = 0}, "kv_heads", "0", "at least 1"},
      {{.hidden = 0}, "hidden", "0", "at least 1"},
      {{.max_sequence = 0}, "max_sequence", "0", "at least 1"},
      {{.dim = 256, .heads = 5, .kv_heads = 1}, "heads", "5", "divide dim, which is 256"},
      {{.heads = 4, .kv_heads = 3}, "kv_heads", "3", "divide heads, which is 4"},
      {{.heads = 4, .kv_heads = 8}, "kv_heads", "8", "divide heads, which is 4"},
      {{.dim = 12, .heads = 4}, "heads", "4", "must be even"},
      {{.rope_theta = 0}, "rope_theta", "0", "above 0"},
      {{.rope_theta = nan}, "rope_theta", "nan", "above 0"},
      {{.norm_eps = -1}, "norm_eps", "-1", "above 0"},
      {{.norm_eps = std::numeric_limits<double>::infinity()}, "norm_eps", "inf", "finite"},
  };
  for (const auto& c : cases) {
    const std::string message = validation_error(c.config);
    EXPECT_EQ(message.rfind(c.field + " is " + c.value, 0), 0u) << message;
    EXPECT_NE(message.find(c.rule), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace octavo::models
