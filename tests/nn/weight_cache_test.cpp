#include "octavo/nn/weight_cache.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include "octavo/nn/experts.h"
#include "octavo/nn/linear.h"

namespace octavo::nn {
namespace {

Linear converted(const char* recipe) {
  torch::manual_seed(1);
  Linear layer(LinearOptions{.in_features = 48, .out_features = 32, .bias = true});
  layer->recipe = Recipe::parse(recipe);
  return layer;
}

// y, dx and dw of one pass.
std::vector<at::Tensor> pass(Linear& layer, std::uint64_t seed) {
  torch::manual_seed(seed);
  const at::Tensor x = torch::randn({24, 48}).set_requires_grad(true);
  layer->weight.mutable_grad().reset();
  const at::Tensor y = layer(x);
  y.backward(torch::randn_like(y));
  return {y.detach(), x.grad(), layer->weight.grad()};
}

TEST(WeightCache, HasTheBitsOfALinearWithout) {
  for (const std::string& recipe : recipe_names()) {
    Linear plain = converted(recipe.c_str()), cached = converted(recipe.c_str());
    enable_weight_caches(*cached);
    for (std::uint64_t seed : {1, 2, 3}) {
      const auto want = pass(plain, seed), got = pass(cached, seed);
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i], want[i])) << recipe << ", tensor " << i;
      }
    }
  }
}

TEST(WeightCache, HoldsUntilItIsInvalidated) {
  Linear layer = converted("rowwise");
  enable_weight_caches(*layer);
  EXPECT_FALSE(layer->weight_cache->filled());
  const at::Tensor before = pass(layer, 1)[0];
  EXPECT_TRUE(layer->weight_cache->filled());
  {
    torch::NoGradGuard no_grad;
    layer->weight.mul_(-1);
  }
  EXPECT_TRUE(at::equal(pass(layer, 1)[0], before));  // explicit: nobody watches the weight
  invalidate_weight_caches(*layer);
  EXPECT_FALSE(at::equal(pass(layer, 1)[0], before));
}

TEST(WeightCache, AnotherRecipeOrMemoryFillsItAnew) {
  Linear layer = converted("rowwise"), fresh = converted("mxfp8");
  enable_weight_caches(*layer);
  pass(layer, 1);
  layer->recipe = Recipe::parse("mxfp8");
  EXPECT_TRUE(at::equal(pass(layer, 1)[0], pass(fresh, 1)[0]));
  const auto copy = std::dynamic_pointer_cast<LinearImpl>(layer->clone());
  {
    torch::NoGradGuard no_grad;
    copy->weight.mul_(-1);
  }
  Linear cloned(copy);
  EXPECT_FALSE(at::equal(pass(cloned, 1)[0], pass(layer, 1)[0]));
}

TEST(WeightCache, FilledInInferenceModeServesTraining) {
  Linear layer = converted("rowwise"), plain = converted("rowwise");
  enable_weight_caches(*layer);
  {
    const c10::InferenceMode inference;
    layer(torch::randn({8, 48}));
  }
  EXPECT_TRUE(layer->weight_cache->filled());
  EXPECT_TRUE(at::equal(pass(layer, 1)[1], pass(plain, 1)[1]));
}

TEST(WeightCache, StaysEmptyWithoutARecipe) {
  Linear layer = converted("rowwise");
  layer->recipe.reset();
  enable_weight_caches(*layer);
  pass(layer, 1);
  EXPECT_FALSE(layer->weight_cache->filled());
}

// ------------------------------ Experts

constexpr const char* kExpertRecipes[] = {"rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"};

Experts converted_experts(const char* recipe) {
  torch::manual_seed(1);
  Experts experts(ExpertsOptions{.experts = 3, .features = 48, .hidden = 32});
  experts->recipe = Recipe::parse(recipe);
  return experts;
}

// y, dx and both gradients of one pass; gradients add up over passes.
std::vector<at::Tensor> experts_pass(Experts& experts, std::uint64_t seed) {
  torch::manual_seed(seed);
  const at::Tensor x = torch::randn({40, 48}).set_requires_grad(true);
  const at::Tensor y = experts(x, at::tensor({17, 17, 40}, at::kInt));
  y.backward(torch::randn_like(y));
  return {y.detach(), x.grad(), experts->gate_up_proj.grad().clone(),
          experts->down_proj.grad().clone()};
}

TEST(WeightCache, ExpertsHaveTheBitsOfExpertsWithout) {
  for (const char* recipe : kExpertRecipes) {
    Experts plain = converted_experts(recipe), cached = converted_experts(recipe);
    enable_weight_caches(*cached);
    for (std::uint64_t seed : {1, 2, 3}) {
      const auto want = experts_pass(plain, seed), got = experts_pass(cached, seed);
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i], want[i])) << recipe << ", tensor " << i;
      }
    }
    EXPECT_TRUE(cached->gate_up_cache->filled() && cached->down_cache->filled());
  }
}

TEST(WeightCache, OfExpertsHoldsUntilItIsInvalidated) {
  Experts experts = converted_experts("rowwise");
  enable_weight_caches(*experts);
  const at::Tensor before = experts_pass(experts, 1)[0];
  {
    torch::NoGradGuard no_grad;
    experts->down_proj.mul_(-1);
  }
  EXPECT_TRUE(at::equal(experts_pass(experts, 1)[0], before));
  invalidate_weight_caches(*experts);
  EXPECT_TRUE(at::equal(experts_pass(experts, 1)[0], -before));
}

TEST(AccumulateGradient, OfExpertsSumsAsAutogradDoesInTheSameTensor) {
  for (const char* recipe : kExpertRecipes) {
    Experts plain = converted_experts(recipe), summed = converted_experts(recipe);
    accumulate_gradients(*summed);
    ASSERT_TRUE(summed->accumulate_gradient);
    const void* gradient = nullptr;
    for (std::uint64_t seed : {1, 2, 3}) {
      const auto want = experts_pass(plain, seed), got = experts_pass(summed, seed);
      if (seed == 1) gradient = summed->down_proj.grad().const_data_ptr();
      EXPECT_EQ(summed->down_proj.grad().const_data_ptr(), gradient);
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i], want[i])) << recipe << ", tensor " << i;
      }
    }
  }
}

// ------------------------------ accumulate_gradient

TEST(AccumulateGradient, SumsAsAutogradDoesInTheSameTensor) {
  for (const std::string& recipe : recipe_names()) {
    Linear plain = converted(recipe.c_str()), summed = converted(recipe.c_str());
    accumulate_gradients(*summed);
    ASSERT_TRUE(summed->accumulate_gradient);
    const void* gradient = nullptr;
    for (int i = 0; i < 3; ++i) {
      const at::Tensor x = torch::randn({24, 48}), dy = torch::randn({24, 32});
      plain(x).backward(dy);
      summed(x).backward(dy);
      if (i == 0) gradient = summed->weight.grad().const_data_ptr();
      EXPECT_EQ(summed->weight.grad().const_data_ptr(), gradient);
      EXPECT_TRUE(at::equal(summed->weight.grad(), plain->weight.grad())) << recipe << " " << i;
      EXPECT_TRUE(at::equal(summed->bias.grad(), plain->bias.grad())) << recipe << " " << i;
    }
  }
}

TEST(AccumulateGradient, AutogradHandsOverOnlyTheFirst) {
  // What is bypassed: the gradient of a non-leaf that a hook of w's accumulator would count.
  Linear layer = converted("rowwise");
  accumulate_gradients(*layer);
  const at::Tensor x = torch::randn({24, 48});
  layer(x).sum().backward();
  const at::Tensor y = layer(x);
  const auto grads = torch::autograd::grad({y.sum()}, {layer->weight}, {}, false, false,
                                           /*allow_unused=*/true);
  EXPECT_FALSE(grads[0].defined());
}

TEST(AccumulateGradient, IsOffWhereSomebodyLooks) {
  Linear layer = converted("rowwise");
  accumulate_gradients(*layer);
  int calls = 0;
  layer->weight.register_hook([&](const at::Tensor&) { ++calls; });
  const at::Tensor x = torch::randn({24, 48});
  for (int i = 0; i < 3; ++i) layer(x).sum().backward();
  EXPECT_EQ(calls, 3);
}

TEST(AccumulateGradient, IsOffForTiedWeights) {
  Linear first = converted("rowwise"), second = converted("rowwise"), alone = converted("rowwise");
  second->tie_weight(first->weight);
  torch::nn::Sequential model(first, second, alone);
  accumulate_gradients(*model);
  EXPECT_FALSE(first->accumulate_gradient);
  EXPECT_FALSE(second->accumulate_gradient);
  EXPECT_TRUE(alone->accumulate_gradient);
}

TEST(AccumulateGradient, AGradientThatIsNotContiguousIsSummedByAutograd) {
  Linear plain = converted("rowwise"), layer = converted("rowwise");
  accumulate_gradients(*layer);
  const at::Tensor x = torch::randn({24, 48});
  for (Linear& each : {std::ref(plain), std::ref(layer)}) {
    each(x).sum().backward();
    each->weight.mutable_grad() = each->weight.grad().t().contiguous().t();  // not contiguous
    each(x).sum().backward();
  }
  EXPECT_TRUE(at::equal(layer->weight.grad(), plain->weight.grad()));
}

}  // namespace
}  // namespace octavo::nn
