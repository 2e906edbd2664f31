#include "octavo/nn/convert.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "octavo/models/llama.h"

namespace octavo::nn {
namespace {

Linear linear(std::int64_t in_features, std::int64_t out_features) {
  return Linear(LinearOptions{.in_features = in_features, .out_features = out_features});
}

models::LlamaConfig small_llama(bool tied_head) {
  models::LlamaConfig config;
  config.vocabulary = 64;
  config.dim = 64;
  config.layers = 2;
  config.heads = 2;
  config.kv_heads = 2;
  config.hidden = 96;
  config.tied_head = tied_head;
  return config;
}

// Block 0 dense, block 1 with experts, a shared expert and a router.
models::LlamaConfig small_moe() {
  models::LlamaConfig config = small_llama(false);
  config.moe = {.experts = 4, .top_k = 2, .hidden = 48, .shared_hidden = 32, .every = 2};
  return config;
}

std::string error_of(torch::nn::Module& module, const ConvertOptions& options) {
  try {
    convert_to_float8_training(module, options);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos)
        << "expected '" << part << "' in '" << message << "'";
  }
}

std::vector<std::string> converted_names(const std::vector<ConvertedLinear>& entries) {
  std::vector<std::string> names;
  for (const ConvertedLinear& entry : entries) {
    EXPECT_EQ(entry.converted, entry.reason.empty()) << entry.fqn;
    if (entry.converted) names.push_back(entry.fqn);
  }
  return names;
}

// field_cases, Conversion: "The root module is itself a Linear: it is converted and returned."
TEST(Convert, TheRootModuleIsItselfALinear) {
  Linear root = linear(16, 16);
  const auto entries = convert_to_float8_training(*root, {.recipe = Recipe::parse("mxfp8")});
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].fqn, "");
  EXPECT_TRUE(entries[0].converted);
  EXPECT_EQ(root->recipe, Recipe::parse("mxfp8"));
}

TEST(Convert, EveryLinearOfALlamaInPlace) {
  models::Llama model(small_llama(false), at::TensorOptions());
  std::vector<void*> before;
  for (const auto& parameter : model->parameters()) before.push_back(parameter.data_ptr());
  const auto entries = convert_to_float8_training(*model, {.recipe = Recipe::parse("tensorwise")});
  EXPECT_EQ(entries.size(), 2u * 7u + 1u);
  EXPECT_EQ(converted_names(entries).size(), entries.size());
  EXPECT_EQ(entries[0].fqn, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(entries.back().fqn, "lm_head");
  std::vector<void*> after;
  for (const auto& parameter : model->parameters()) after.push_back(parameter.data_ptr());
  EXPECT_EQ(before, after) << "conversion allocates nothing and moves nothing";
  EXPECT_EQ(model->lm_head->recipe, Recipe::parse("tensorwise"));
}

// field_cases, Conversion: "Skip lists reach nested modules."
TEST(Convert, SkipListsReachNestedModules) {
  const auto left = [](const std::vector<std::string>& filters) {
    models::Llama model(small_llama(false), at::TensorOptions());
    std::vector<std::string> names;
    for (const auto& entry :
         convert_to_float8_training(*model, {.recipe = {}, .filter_fqns = filters})) {
      if (entry.converted) continue;
      EXPECT_NE(entry.reason.find(filters[0]), std::string::npos) << entry.reason;
      names.push_back(entry.fqn);
    }
    return names;
  };
  EXPECT_EQ(left({"lm_head"}), (std::vector<std::string>{"lm_head"}));
  EXPECT_EQ(left({"k_proj"}), (std::vector<std::string>{"model.layers.0.self_attn.k_proj",
                                                        "model.layers.1.self_attn.k_proj"}));
  EXPECT_EQ(left({"layers.1.mlp"}).size(), 3u);
  EXPECT_EQ(left({"self_attn"}).size(), 8u);
  // torchtitan's names
  EXPECT_EQ(left({"output"}), left({"lm_head"}));
  EXPECT_EQ(left({"wq"}), left({"q_proj"}));
  EXPECT_EQ(left({"wk"}), left({"k_proj"}));
  EXPECT_EQ(left({"wv"}), left({"v_proj"}));
  EXPECT_EQ(left({"wo"}), left({"o_proj"}));
  EXPECT_EQ(left({"w1"}), left({"gate_proj"}));
  EXPECT_EQ(left({"w2"}), left({"down_proj"}));
  EXPECT_EQ(left({"w3"}), left({"up_proj"}));
  EXPECT_EQ(left({"layers.1.attention"}), left({"layers.1.self_attn"}));
}

TEST(Convert, TorchtitanNames) {
  EXPECT_EQ(torchtitan_name("model.layers.0.self_attn.q_proj"), "layers.0.attention.wq");
  EXPECT_EQ(torchtitan_name("model.layers.11.mlp.down_proj"), "layers.11.feed_forward.w2");
  EXPECT_EQ(torchtitan_name("lm_head"), "output");
  EXPECT_EQ(torchtitan_name("encoder.model.fc"), "encoder.model.fc");
  EXPECT_EQ(torchtitan_name(""), "");
}

TEST(Convert, FilterFunction) {
  models::Llama model(small_llama(false), at::TensorOptions());
  const auto entries = convert_to_float8_training(
      *model, {.recipe = {}, .filter = [](const torch::nn::Module& layer, const std::string& fqn) {
                 return layer.as<LinearImpl>()->options.out_features == 96 &&
                        fqn.find("layers.0") != fqn.npos;
               }});
  EXPECT_EQ(converted_names(entries), (std::vector<std::string>{"model.layers.0.mlp.gate_proj",
                                                                "model.layers.0.mlp.up_proj"}));
}

TEST(Convert, UnmatchedFilterIsAnErrorThatChangesNothing) {
  models::Llama model(small_llama(false), at::TensorOptions());
  const std::string message = error_of(*model, {.recipe = {}, .filter_fqns = {"lm_head", "q_prj"}});
  expect_parts(message, {"'q_prj' matches no linear", "did you mean 'q_proj'", "allow_unmatched"});
  EXPECT_FALSE(model->model->layers->at<models::LlamaBlockImpl>(0).mlp->up_proj->recipe);
  const auto entries = convert_to_float8_training(
      *model, {.recipe = {}, .filter_fqns = {"lm_head", "q_prj"}, .allow_unmatched = true});
  EXPECT_EQ(converted_names(entries).size(), entries.size() - 1);
  expect_parts(error_of(*model, {.recipe = {}, .filter_fqns = {""}}), {"empty entry"});
}

TEST(Convert, NothingConvertedIsAnError) {
  torch::nn::Sequential empty(torch::nn::ReLU{});
  expect_parts(error_of(*empty, {.recipe = {}}), {"no octavo::nn::Linear"});
  models::Llama model(small_llama(false), at::TensorOptions());
  expect_parts(error_of(*model, {.recipe = {}, .filter_fqns = {"proj", "lm_head"}}),
               {"the filters leave out every linear"});
}

TEST(Convert, ForeignLinearIsAnErrorNamingTheModuleAndTheRepair) {
  torch::nn::Sequential model;
  model->push_back("own", linear(16, 16));
  model->push_back("foreign", torch::nn::Linear(16, 16));
  expect_parts(error_of(*model, {.recipe = {}}),
               {"foreign is a torch::nn::Linear", "octavo::nn::Linear", "filter_fqns"});
  EXPECT_FALSE(model->at<LinearImpl>(0).recipe) << "an error changes nothing";
  const auto entries =
      convert_to_float8_training(*model, {.recipe = {}, .filter_fqns = {"foreign"}});
  EXPECT_EQ(converted_names(entries), (std::vector<std::string>{"own"}));
  EXPECT_EQ(entries.size(), 2u);
}

TEST(Convert, RecipeThatCannotRunIsRefusedAtOnce) {
  Linear root = linear(16, 16);
  Recipe recipe;
  recipe.name = RecipeName::kMxfp8;
  recipe.flavour = FlavourChoice::kFNUZ;
  expect_parts(error_of(*root, {.recipe = recipe}), {"mxfp8", "rowwise"});
  EXPECT_FALSE(root->recipe);
}

TEST(Convert, ModuleRegisteredTwiceCountsOnce) {
  torch::nn::Sequential model;
  Linear shared = linear(16, 16);
  model->push_back("a", shared);
  model->push_back("b", shared);
  const auto entries = convert_to_float8_training(*model, {.recipe = {}});
  EXPECT_EQ(converted_names(entries), (std::vector<std::string>{"a"}));
}

// field_cases, Conversion: "Tied head and embedding: same storage after conversion, [...] both
// gradients summed." (The optimiser's half is in tests/train.)
TEST(Convert, TiedHeadAndEmbeddingKeepOneStorageAndSumGradients) {
  torch::manual_seed(3);
  models::Llama model(small_llama(true), at::TensorOptions());
  convert_to_float8_training(*model, {.recipe = Recipe::parse("rowwise")});
  EXPECT_TRUE(model->lm_head->recipe);
  const at::Tensor head = model->lm_head->weight;
  const at::Tensor embedding = model->model->embed_tokens->weight;
  EXPECT_EQ(head.unsafeGetTensorImpl(), embedding.unsafeGetTensorImpl());

  const at::Tensor tokens = torch::randint(64, {2, 8}, at::kLong);
  model->loss(tokens, tokens).backward();
  const at::Tensor tied = embedding.grad().clone();

  // The same model with two tensors: the tied gradient is the sum of theirs.
  torch::manual_seed(3);
  models::Llama apart(small_llama(true), at::TensorOptions());
  convert_to_float8_training(*apart, {.recipe = Recipe::parse("rowwise")});
  const at::Tensor copy = embedding.detach().clone().set_requires_grad(true);
  apart->lm_head->weight = copy;
  apart->loss(tokens, tokens).backward();
  const at::Tensor sum = apart->model->embed_tokens->weight.grad() + copy.grad();
  // One fp32 addition per element, in either order.
  EXPECT_TRUE(at::allclose(tied, sum, 1e-6, 1e-8));
  EXPECT_GT(copy.grad().abs().max().item<float>(), 0.0f);
}

// field_cases, Conversion: "Small layers (768 -> 2 head, 12-input gate) stay in high precision when
// the size filter is on."
TEST(Convert, SmallLayersStayInHighPrecisionWhenTheSizeFilterIsOn) {
  const auto build = [] {
    torch::nn::Sequential model;
    model->push_back("body", linear(1024, 1024));
    model->push_back("head", linear(768, 2));
    model->push_back("gate", linear(12, 768));
    return model;
  };
  torch::nn::Sequential on = build(), off = build();
  EXPECT_EQ(
      converted_names(convert_to_float8_training(*on, {.recipe = {}, .auto_filter_small = true})),
      (std::vector<std::string>{"body"}));
  EXPECT_FALSE(on->at<LinearImpl>(1).recipe);
  EXPECT_EQ(converted_names(convert_to_float8_training(*off, {.recipe = {}})).size(), 3u)
      << "off by default";
}

TEST(Convert, ExpertsAreOneLayerAndTheGateIsLeft) {
  models::Llama model(small_moe(), at::TensorOptions());
  const auto entries = convert_to_float8_training(*model, {.recipe = Recipe::parse("rowwise")});
  // Block 0: 4 + 3; block 1: 4, gate, experts, 3 of the shared expert; the head.
  EXPECT_EQ(entries.size(), 7u + 9u + 1u);
  EXPECT_EQ(converted_names(entries).size(), entries.size() - 1);
  auto& moe = model->model->layers->at<models::LlamaBlockImpl>(1).moe;
  EXPECT_EQ(moe->experts->recipe, Recipe::parse("rowwise"));
  EXPECT_FALSE(moe->router->gate->recipe);
  for (const auto& entry : entries) {
    if (entry.converted) continue;
    EXPECT_EQ(entry.fqn, "model.layers.1.moe.router.gate");
    EXPECT_NE(entry.reason.find("always"), std::string::npos) << entry.reason;
  }
}

// field_cases, Conversion: "3-D expert weights are converted too; dense first or experts first
// gives the same count."
TEST(Convert, DenseAndExpertsApartInEitherOrderAreBoth) {
  const ConvertOptions dense{.recipe = Recipe::parse("rowwise"), .filter_fqns = {"experts"}};
  const ConvertOptions experts{.recipe = Recipe::parse("mxfp8"), .select_fqns = {"experts"}};
  for (const bool dense_first : {true, false}) {
    models::Llama model(small_moe(), at::TensorOptions());
    const auto first = convert_to_float8_training(*model, dense_first ? dense : experts);
    const auto second = convert_to_float8_training(*model, dense_first ? experts : dense);
    const auto names_of_dense = converted_names(dense_first ? first : second);
    EXPECT_EQ(names_of_dense.size(), 15u);
    EXPECT_EQ(converted_names(dense_first ? second : first),
              (std::vector<std::string>{"model.layers.1.moe.experts"}));
    auto& block = model->model->layers->at<models::LlamaBlockImpl>(1);
    EXPECT_EQ(block.moe->experts->recipe, Recipe::parse("mxfp8")) << dense_first;
    EXPECT_EQ(block.moe->shared_expert->up_proj->recipe, Recipe::parse("rowwise")) << dense_first;
    EXPECT_EQ(block.self_attn->q_proj->recipe, Recipe::parse("rowwise")) << dense_first;
  }
}

TEST(Convert, TorchtitansSkipListForExperts) {
  models::Llama model(small_moe(), at::TensorOptions());
  const auto entries = convert_to_float8_training(
      *model,
      {.recipe = Recipe::parse("rowwise"), .filter_fqns = {"output", "router.gate", "wk", "wv"}});
  std::vector<std::string> left;
  for (const auto& entry : entries) {
    if (!entry.converted) left.push_back(entry.fqn);
  }
  EXPECT_EQ(left, (std::vector<std::string>{
                      "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj",
                      "model.layers.1.self_attn.k_proj", "model.layers.1.self_attn.v_proj",
                      "model.layers.1.moe.router.gate", "lm_head"}));
}

TEST(Convert, TensorwiseForExpertsIsAnErrorNamingRowwise) {
  models::Llama model(small_moe(), at::TensorOptions());
  const Recipe tensorwise = Recipe::parse("tensorwise");
  expect_parts(error_of(*model, {.recipe = tensorwise}),
               {"model.layers.1.moe.experts", "tensorwise", "rowwise"});
  EXPECT_FALSE(model->lm_head->recipe) << "an error changes nothing";
  const auto entries =
      convert_to_float8_training(*model, {.recipe = tensorwise, .filter_fqns = {"experts"}});
  EXPECT_EQ(converted_names(entries).size(), 15u);
}

TEST(Convert, SelectedNamesThatMatchNothingAreAnError) {
  models::Llama model(small_moe(), at::TensorOptions());
  expect_parts(error_of(*model, {.recipe = {}, .select_fqns = {"expert_s"}}),
               {"select_fqns: 'expert_s' matches no linear or experts", "did you mean 'experts'"});
  expect_parts(error_of(*model, {.recipe = {}, .select_fqns = {""}}), {"empty entry"});
}

}  // namespace
}  // namespace octavo::nn
