// Plain and converted models share their state dicts: tests/field_cases.md, "Distributed and
// checkpoint".

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "octavo/models/llama.h"
#include "octavo/nn/convert.h"
#include "octavo/train/checkpoint.h"

namespace octavo::train {
namespace {

models::Llama model(bool tied_head, std::uint64_t seed, const char* recipe = nullptr) {
  models::LlamaConfig config;
  config.vocabulary = 64;
  config.dim = 64;
  config.layers = 2;
  config.heads = 2;
  config.kv_heads = 1;
  config.hidden = 96;
  config.tied_head = tied_head;
  torch::manual_seed(seed);
  models::Llama llama(config, at::TensorOptions());
  if (recipe) nn::convert_to_float8_training(*llama, {.recipe = Recipe::parse(recipe)});
  return llama;
}

float loss(models::Llama& llama) {
  const at::Tensor tokens = at::arange(32, at::kLong).view({2, 16});
  return llama->loss(tokens, tokens).item<float>();
}

TEST(StateDict, PlainAndConvertedLoadEachOthersStrictly) {
  for (bool tied : {false, true}) {
    for (const std::string& recipe : recipe_names()) {
      SCOPED_TRACE(recipe + (tied ? ", tied head" : ""));
      models::Llama plain = model(tied, 1), converted = model(tied, 2, recipe.c_str());
      const NamedTensors from_plain = module_parameters(*plain);
      const NamedTensors from_converted = module_parameters(*converted);
      ASSERT_EQ(from_plain.size(), from_converted.size());
      for (std::size_t i = 0; i < from_plain.size(); ++i) {
        EXPECT_EQ(from_plain[i].first, from_converted[i].first);
        EXPECT_EQ(from_plain[i].second.scalar_type(), from_converted[i].second.scalar_type());
        EXPECT_EQ(from_plain[i].second.sizes(), from_converted[i].second.sizes());
      }

      // What each computes then is what a model of its kind with those weights computes.
      models::Llama loaded_plain = model(tied, 3),
                    loaded_converted = model(tied, 3, recipe.c_str());
      load_parameters(*loaded_plain, from_converted);
      load_parameters(*loaded_converted, from_plain);
      models::Llama plain_of_2 = model(tied, 2), converted_of_1 = model(tied, 1, recipe.c_str());
      EXPECT_EQ(loss(loaded_plain), loss(plain_of_2));
      EXPECT_EQ(loss(loaded_converted), loss(converted_of_1));
      EXPECT_NE(loss(loaded_converted), loss(plain));  // it still runs in FP8
      EXPECT_NE(loss(plain), loss(plain_of_2));        // and the weights are not all alike
    }
  }
}

}  // namespace
}  // namespace octavo::train
