#include "octavo/nn/linear.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cmath>
#include <sstream>

#include "octavo/kernels/counter.h"

namespace octavo::nn {
namespace {

TEST(Linear, WithoutRecipeIsAPlainLinear) {
  Linear layer(LinearOptions{.in_features = 5, .out_features = 3, .bias = true});
  const at::Tensor x = torch::randn({2, 4, 5});
  EXPECT_TRUE(at::equal(layer(x), at::linear(x, layer->weight, layer->bias)));
}

TEST(Linear, WithRecipeIsFloat8Linear) {
  Linear layer(LinearOptions{.in_features = 48, .out_features = 32, .bias = true});
  layer->recipe = Recipe::parse("tensorwise");
  const at::Tensor x = torch::randn({2, 4, 48});
  EXPECT_TRUE(at::equal(layer(x), float8_linear(x, layer->weight, layer->bias, *layer->recipe)));
  EXPECT_FALSE(at::equal(layer(x), at::linear(x, layer->weight, layer->bias)));
}

TEST(Linear, ASharedInputChangesNoBitAndIsQuantisedOnce) {
  for (const std::string& recipe : recipe_names()) {
    std::vector<Linear> linears;
    for (std::int64_t out : {32, 16, 48}) {
      linears.emplace_back(LinearOptions{.in_features = 48, .out_features = out});
      linears.back()->recipe = Recipe::parse(recipe);
    }
    linears[2]->recipe = Recipe::parse("tensorwise(fast_accumulation=all)");  // reads x itself
    linears[1]->weight.set_requires_grad(false);
    std::vector<std::vector<at::Tensor>> results;
    std::vector<std::uint64_t> passes;
    for (const bool shared : {false, true}) {
      torch::manual_seed(1);
      const at::Tensor x = torch::randn({2, 12, 48}).set_requires_grad(true);
      const std::uint64_t before = kernels::counters().quantize;
      LinearInput input{.x = x, .quantized = std::nullopt, .recipe = std::nullopt};
      if (shared) input = share_input(x, {linears[0].get(), linears[1].get(), linears[2].get()});
      EXPECT_EQ(input.quantized.has_value(), shared);
      at::Tensor sum = torch::zeros({});
      for (Linear& linear : linears) {
        linear->weight.mutable_grad().reset();
        sum = sum + linear->forward_shared(input).square().sum();
      }
      passes.push_back(kernels::counters().quantize - before);
      sum.backward();
      results.push_back(
          {sum.detach(), x.grad(), linears[0]->weight.grad(), linears[2]->weight.grad()});
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << recipe << " " << i;
    }
    EXPECT_EQ(passes[1] + 1, passes[0]) << recipe;
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(
        share_input(torch::randn({8, 48}), {linears[0].get(), linears[1].get()}).quantized);
  }
}

// q, k and v: x quantised once, the sum of dx inside the products; on the CPU the same bits.
TEST(Linear, TogetherHasTheBitsOfOneByOne) {
  std::vector<std::string> recipes = recipe_names();
  recipes.push_back("rowwise(flavour=fnuz)");
  for (const std::string& recipe : recipes) {
    for (const bool mixed : {false, true}) {
      std::vector<Linear> linears;
      for (std::int64_t out : {48, 16, 32}) {
        linears.emplace_back(LinearOptions{.in_features = 48, .out_features = out});
        linears.back()->recipe = Recipe::parse(recipe);
        linears.back()->accumulate_gradient = true;
      }
      linears[1]->weight.set_requires_grad(false);
      if (mixed) linears[2]->recipe.reset();
      std::vector<std::vector<at::Tensor>> results;
      std::vector<std::uint64_t> casts;
      for (const bool fusion : {false, true}) {
        std::vector<at::Tensor> seen;
        for (Linear& linear : linears) linear->weight.mutable_grad().reset();
        const std::uint64_t before = kernels::counters().quantize;
        for (int micro = 0; micro < 2; ++micro) {
          torch::manual_seed(std::uint64_t(micro));
          const at::Tensor x = torch::randn({2, 12, 48}).set_requires_grad(true);
          const auto y =
              forward_together({.x = x, .quantized = std::nullopt, .recipe = std::nullopt},
                               {linears[0].get(), linears[1].get(), linears[2].get()}, fusion);
          // The middle one's result is not used the second time.
          at::Tensor loss = y[0].square().sum() + y[2].sin().sum();
          if (micro == 0) loss = loss + y[1].cos().sum();
          loss.backward();
          seen.insert(seen.end(), {y[0].detach(), y[1].detach(), y[2].detach(), x.grad()});
        }
        casts.push_back(kernels::counters().quantize - before);
        seen.push_back(linears[0]->weight.grad());
        seen.push_back(linears[2]->weight.grad());
        results.push_back(seen);
      }
      EXPECT_EQ(casts[1], casts[0]) << recipe;
      for (std::size_t i = 0; i < results[0].size(); ++i) {
        EXPECT_TRUE(at::equal(results[1][i], results[0][i])) << recipe << " " << mixed << " " << i;
      }
    }
  }
  const torch::NoGradGuard no_grad;
  Linear layer(LinearOptions{.in_features = 48, .out_features = 16});
  layer->recipe = Recipe::parse("rowwise");
  const at::Tensor x = torch::randn({3, 48});
  EXPECT_TRUE(
      at::equal(forward_together({.x = x, .quantized = std::nullopt, .recipe = std::nullopt},
                                 {layer.get()}, true)[0],
                layer(x)));
}

TEST(Linear, InitialisationIsTorchs) {
  const double bound = 1.0 / std::sqrt(400.0);
  Linear layer(LinearOptions{.in_features = 400, .out_features = 300, .bias = true});
  for (const at::Tensor& parameter : layer->parameters()) {
    EXPECT_LE(parameter.abs().max().item<double>(), bound);
    EXPECT_GE(parameter.abs().max().item<double>(), 0.9 * bound);  // 300 draws or more
  }
  // torch.nn.Linear draws the weight first, then the bias, from the same generator.
  torch::manual_seed(5);
  Linear ours(LinearOptions{.in_features = 7, .out_features = 3, .bias = true});
  torch::manual_seed(5);
  torch::nn::Linear theirs(7, 3);
  // kaiming_uniform_(a = sqrt(5)) computes the same bound in another order of operations.
  EXPECT_TRUE(at::allclose(ours->weight, theirs->weight, 1e-6, 0));
  EXPECT_TRUE(at::allclose(ours->bias, theirs->bias, 1e-6, 0));
}

TEST(Linear, NamesAreThoseOfAPlainLinear) {
  Linear layer(LinearOptions{.in_features = 4, .out_features = 4, .bias = true});
  layer->recipe = Recipe{};
  std::vector<std::string> names;
  for (const auto& item : layer->named_parameters()) names.push_back(item.key());
  EXPECT_EQ(names, (std::vector<std::string>{"weight", "bias"}));
  EXPECT_EQ(layer->named_buffers().size(), 0u);
}

TEST(Linear, PrintsItsRecipe) {
  Linear layer(LinearOptions{.in_features = 4, .out_features = 8});
  std::ostringstream plain, converted;
  plain << *layer;
  layer->recipe = Recipe::parse("mxfp8_cublas");
  converted << *layer;
  EXPECT_EQ(plain.str(), "octavo::nn::Linear(4, 8)");
  EXPECT_EQ(converted.str(), "octavo::nn::Linear(4, 8, recipe mxfp8(mx_rounding=floor))");
}

TEST(Linear, CloneKeepsTheRecipe) {
  Linear layer(LinearOptions{.in_features = 16, .out_features = 16});
  layer->recipe = Recipe::parse("blockwise");
  layer->keep_weight_transposed = KeepWeightTransposed::kOff;
  const auto copy = std::dynamic_pointer_cast<LinearImpl>(layer->clone());
  EXPECT_EQ(copy->recipe, layer->recipe);
  EXPECT_EQ(copy->keep_weight_transposed, KeepWeightTransposed::kOff);
  EXPECT_TRUE(at::equal(copy->weight, layer->weight));
  EXPECT_FALSE(copy->weight.is_alias_of(layer->weight));
}

}  // namespace
}  // namespace octavo::nn
