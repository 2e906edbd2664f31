#include "octavo/models/feed_forward.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "octavo/kernels/counter.h"
#include "octavo/nn/activation_checkpoint.h"
#include "octavo/nn/weight_cache.h"
#include "octavo/ops/swiglu.h"

namespace octavo::models {
namespace {

constexpr std::int64_t kDim = 48, kHidden = 80;

LlamaMlp converted_mlp(const std::string& recipe, bool fusion) {
  torch::manual_seed(2);
  LlamaMlp mlp(kDim, kHidden, at::TensorOptions{});
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& w : mlp->parameters()) w.normal_(0, 0.2);
  }
  for (nn::Linear linear : {mlp->gate_proj, mlp->up_proj, mlp->down_proj}) {
    linear->recipe = Recipe::parse(recipe);
  }
  nn::set_fusion(*mlp, fusion);
  return mlp;
}

// y, dx and the weights' gradients after `passes` backward passes that add up.
std::vector<at::Tensor> mlp_pass(LlamaMlp& mlp, int passes = 1, bool checkpointed = false) {
  std::vector<at::Tensor> results;
  mlp->zero_grad();
  for (int i = 0; i < passes; ++i) {
    torch::manual_seed(std::uint64_t(10 + i));
    const at::Tensor x = torch::randn({2, 20, kDim}).set_requires_grad(true);
    const at::Tensor y =
        checkpointed ? nn::checkpoint([&](const at::Tensor& in) { return mlp(in); }, x) : mlp(x);
    y.backward(torch::randn_like(y));
    results.push_back(y.detach());
    results.push_back(x.grad());
  }
  for (const at::Tensor& w : mlp->parameters()) results.push_back(w.grad().clone());
  return results;
}

void expect_same_tensors(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want,
                         const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::equal(got[i], want[i])) << what << ", tensor " << i;
  }
}

std::vector<std::string> all_recipes() {
  std::vector<std::string> recipes = recipe_names();
  for (const char* more : {"tensorwise(flavour=fnuz)", "rowwise(flavour=fnuz)",
                           "rowwise_with_gw_hp(flavour=fnuz)", "blockwise(flavour=fnuz)"}) {
    recipes.push_back(more);
  }
  return recipes;
}

TEST(LlamaMlp, FusedHasTheBitsOfLayerByLayer) {
  for (const std::string& recipe : all_recipes()) {
    LlamaMlp apart = converted_mlp(recipe, false), fused = converted_mlp(recipe, true);
    const auto want = mlp_pass(apart);
    expect_same_tensors(mlp_pass(fused), want, recipe);
    expect_same_tensors(mlp_pass(fused, 1, /*checkpointed=*/true), want, recipe + " checkpointed");
    const torch::NoGradGuard no_grad;
    const at::Tensor x = torch::randn({5, kDim});
    EXPECT_TRUE(at::equal(fused(x), apart(x))) << recipe;
  }
}

// What a trainer does over the micro-batches of a step.
TEST(LlamaMlp, FusedTakesQuantisedWeightsAndAddsToTheirGradients) {
  for (const std::string& recipe : recipe_names()) {
    LlamaMlp apart = converted_mlp(recipe, false), fused = converted_mlp(recipe, true);
    const auto want = mlp_pass(apart, 3);
    nn::enable_weight_caches(*fused);
    nn::accumulate_gradients(*fused);
    expect_same_tensors(mlp_pass(fused, 3), want, recipe);
    EXPECT_TRUE(fused->gate_proj->weight_cache->filled());
    const torch::NoGradGuard no_grad;  // evaluation reads the caches too
    const at::Tensor x = torch::randn({5, kDim});
    EXPECT_TRUE(at::equal(fused(x), apart(x))) << recipe;
  }
}

TEST(LlamaMlp, UnlikeLayersRunOneByOne) {
  LlamaMlp fused = converted_mlp("rowwise", true), apart = converted_mlp("rowwise", false);
  for (LlamaMlp mlp : {fused, apart}) mlp->down_proj->recipe = Recipe::parse("mxfp8");
  expect_same_tensors(mlp_pass(fused), mlp_pass(apart), "another recipe");
  for (LlamaMlp mlp : {fused, apart}) mlp->down_proj->recipe.reset();
  expect_same_tensors(mlp_pass(fused), mlp_pass(apart), "a layer in high precision");
  LlamaMlp frozen = converted_mlp("rowwise", true);
  frozen->up_proj->weight.set_requires_grad(false);
  const at::Tensor x = torch::randn({5, kDim}).set_requires_grad(true);
  const std::uint64_t before = kernels::counters().quantize;
  frozen(x).sum().backward();
  EXPECT_FALSE(frozen->up_proj->weight.grad().defined());
  EXPECT_TRUE(frozen->gate_proj->weight.grad().defined());
  EXPECT_GT(kernels::counters().quantize, before);
}

TEST(LlamaMlp, WithoutRecipesIsItsFormula) {
  torch::manual_seed(2);
  LlamaMlp mlp(kDim, kHidden, at::TensorOptions{});
  const at::Tensor x = torch::randn({7, kDim});
  const at::Tensor h = at::silu(mlp->gate_proj(x)) * mlp->up_proj(x);
  EXPECT_TRUE(at::equal(mlp(x), mlp->down_proj(h)));
}

}  // namespace
}  // namespace octavo::models
