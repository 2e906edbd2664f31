#include "octavo/nn/weight_amax.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>

#include "octavo/kernels/counter.h"
#include "octavo/nn/linear.h"

namespace octavo::nn {
namespace {

Linear with_recipe(const char* recipe, std::int64_t out = 32) {
  torch::manual_seed(1);
  Linear layer(LinearOptions{.in_features = 48, .out_features = out});
  if (recipe != nullptr) layer->recipe = Recipe::parse(recipe);
  return layer;
}

float largest(const at::Tensor& w) { return w.detach().abs().max().item<float>(); }

TEST(WeightAmax, RefreshFindsItAndReadsNothingWhereItIsKnown) {
  const Linear layer = with_recipe("tensorwise");
  const at::Tensor& w = layer->weight;
  WeightAmax amax;
  EXPECT_FALSE(amax.of(w).defined());
  amax.refresh(w);
  ASSERT_TRUE(amax.of(w).defined());
  EXPECT_EQ(amax.of(w).item<float>(), largest(w));
  amax.memory(w).fill_(7.0f);  // what somebody found
  amax.refresh(w);
  EXPECT_EQ(amax.of(w).item<float>(), 7.0f);
  amax.forget();
  EXPECT_FALSE(amax.of(w).defined());
  amax.refresh(w);
  EXPECT_EQ(amax.of(w).item<float>(), largest(w));
  EXPECT_EQ(amax.of(w).const_data_ptr(), amax.memory(w).const_data_ptr());
}

TEST(WeightAmax, OfBf16NaNAndEmptyWeights) {
  WeightAmax amax;
  const at::Tensor bf16 = torch::randn({5, 7}).to(torch::kBFloat16);
  amax.refresh(bf16);
  EXPECT_EQ(amax.of(bf16).item<float>(), largest(bf16.to(torch::kFloat)));
  const at::Tensor nan = torch::tensor({1.0f, std::nanf(""), -3.0f});
  amax.refresh(nan);
  EXPECT_TRUE(std::isnan(amax.of(nan).item<float>()));
  const at::Tensor empty = torch::empty({0, 4});
  amax.refresh(empty);
  EXPECT_EQ(amax.of(empty).item<float>(), 0.0f);
}

// Each change of the weight's values, memory or shape makes the amax unknown.
TEST(WeightAmax, EveryChangeOfTheWeightIsNoticed) {
  const auto forgets = [](const char* what, const std::function<void(LinearImpl&)>& change) {
    Linear layer = with_recipe("tensorwise");
    WeightAmax amax;
    amax.refresh(layer->weight);
    ASSERT_TRUE(amax.of(layer->weight).defined()) << what;
    {
      const torch::NoGradGuard no_grad;
      change(*layer);
    }
    EXPECT_FALSE(amax.of(layer->weight).defined()) << what;
    amax.refresh(layer->weight);
    EXPECT_EQ(amax.of(layer->weight).item<float>(), largest(layer->weight.to(torch::kFloat)))
        << what;
  };
  forgets("mul_", [](LinearImpl& l) { l.weight.mul_(2); });
  forgets("copy_, as loading does", [](LinearImpl& l) { l.weight.copy_(torch::ones({32, 48})); });
  forgets("one element", [](LinearImpl& l) { l.weight[3][4] = 9.0f; });
  forgets("through a view", [](LinearImpl& l) { l.weight.narrow(0, 0, 1).zero_(); });
  forgets("through detach()", [](LinearImpl& l) { l.weight.detach().mul_(2); });
  forgets("set_data", [](LinearImpl& l) { l.weight.set_data(torch::ones({32, 48})); });
  forgets("set_data to a part of itself",
          [](LinearImpl& l) { l.weight.set_data(l.weight.detach().narrow(0, 0, 1)); });
  forgets("set_data to its transpose",
          [](LinearImpl& l) { l.weight.set_data(l.weight.detach().t()); });
  forgets("another dtype", [](LinearImpl& l) { l.to(torch::kBFloat16); });
  forgets("another weight", [](LinearImpl& l) { l.tie_weight(torch::ones({32, 48})); });
}

// Memory that was freed and given out again is another's, at whatever address.
TEST(WeightAmax, AnAddressThatComesBackIsNotTheSameWeight) {
  WeightAmax amax;
  bool came_back = false;
  for (int i = 0; i < 100; ++i) {
    at::Tensor w = torch::full({32, 48}, 2.0f);
    const void* const address = w.const_data_ptr();
    amax.refresh(w);
    w.set_data(torch::empty({0}));
    at::Tensor again = torch::full({32, 48}, 1.0f);
    came_back = came_back || again.const_data_ptr() == address;
    w.set_data(again);
    EXPECT_FALSE(amax.of(w).defined());
  }
  EXPECT_TRUE(came_back) << "the allocator gave no address twice: the test shows nothing";
}

TEST(WeightAmax, WritesPastTheVersionAreForTheWriterToForget) {
  const Linear layer = with_recipe("tensorwise");
  WeightAmax amax;
  amax.refresh(layer->weight);
  layer->weight.data().mul_(2);
  EXPECT_TRUE(amax.of(layer->weight).defined());
  amax.forget();
  EXPECT_FALSE(amax.of(layer->weight).defined());
}

TEST(WeightAmax, IsTrackedWhereAWeightIsScaledAsAWhole) {
  Linear plain = with_recipe(nullptr), whole = with_recipe("tensorwise"),
         rows = with_recipe("rowwise"), backward = with_recipe("rowwise_with_gw_hp"),
         first = with_recipe("tensorwise"), second = with_recipe("tensorwise");
  second->tie_weight(first->weight);
  torch::nn::Sequential model(plain, whole, rows, backward, first, second);
  const std::vector<LinearImpl*> tracked = track_weight_amaxes(*model);
  EXPECT_EQ(tracked, (std::vector<LinearImpl*>{whole.get(), backward.get()}));
  EXPECT_TRUE(whole->weight_amax && backward->weight_amax);
  EXPECT_FALSE(plain->weight_amax || rows->weight_amax || first->weight_amax ||
               second->weight_amax);
  whole->weight_amax->refresh(whole->weight);
  const void* const memory = whole->weight_amax->of(whole->weight).const_data_ptr();
  track_weight_amaxes(*model);  // a second time changes nothing
  EXPECT_EQ(whole->weight_amax->of(whole->weight).const_data_ptr(), memory);
}

// y, dx and dw, and the passes that read an operand for its amax.
struct Pass {
  std::vector<at::Tensor> results;
  std::uint64_t amaxes;
};

Pass pass(Linear& layer, KeepWeightTransposed keep) {
  layer->keep_weight_transposed = keep;
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({24, 48}).set_requires_grad(true);
  layer->weight.mutable_grad().reset();
  const std::uint64_t before = kernels::counters().amax;
  const at::Tensor y = layer(x);
  y.backward(torch::randn_like(y));
  return {{y.detach(), x.grad(), layer->weight.grad()}, kernels::counters().amax - before};
}

TEST(WeightAmax, SavesReadsAndChangesNoBit) {
  for (const KeepWeightTransposed keep : {KeepWeightTransposed::kOn, KeepWeightTransposed::kOff}) {
    Linear plain = with_recipe("tensorwise"), known = with_recipe("tensorwise");
    track_weight_amaxes(*known);
    known->weight_amax->refresh(known->weight);
    const Pass want = pass(plain, keep), got = pass(known, keep);
    for (std::size_t i = 0; i < want.results.size(); ++i) {
      EXPECT_TRUE(at::equal(got.results[i], want.results[i])) << i;
    }
    // w is read for it in forward and, not kept, again in backward.
    EXPECT_EQ(want.amaxes - got.amaxes, keep == KeepWeightTransposed::kOn ? 1u : 2u);
  }
}

// It is the amax given that is used, in forward and in backward: twice of it, twice the scale.
TEST(WeightAmax, IsWhatTheScaleFollowsFrom) {
  Linear layer = with_recipe("tensorwise");
  for (const KeepWeightTransposed keep : {KeepWeightTransposed::kOn, KeepWeightTransposed::kOff}) {
    track_weight_amaxes(*layer);
    layer->weight_amax->forget();
    layer->weight_amax->refresh(layer->weight);
    const Pass right = pass(layer, keep);
    layer->weight_amax->memory(layer->weight).fill_(1e-3f);  // everything saturates
    layer->weight_amax->found(layer->weight);
    const Pass wrong = pass(layer, keep);
    EXPECT_FALSE(at::equal(wrong.results[0], right.results[0]));
    EXPECT_FALSE(at::equal(wrong.results[1], right.results[1]));
    EXPECT_TRUE(at::equal(wrong.results[2], right.results[2]));  // dw does not depend on w
  }
}

TEST(WeightAmax, AStaleOneIsNotUsed) {
  Linear layer = with_recipe("tensorwise"), plain = with_recipe("tensorwise");
  track_weight_amaxes(*layer);
  layer->weight_amax->refresh(layer->weight);
  {
    const torch::NoGradGuard no_grad;
    layer->weight.mul_(-3);
    plain->weight.mul_(-3);
  }
  const Pass want = pass(plain, KeepWeightTransposed::kOff),
             got = pass(layer, KeepWeightTransposed::kOff);
  EXPECT_TRUE(at::equal(got.results[0], want.results[0]));
  EXPECT_TRUE(at::equal(got.results[1], want.results[1]));
  EXPECT_EQ(got.amaxes, want.amaxes);
}

TEST(WeightAmax, ServesTheWeightCacheAndPassesWithoutAGraph) {
  Linear cached = with_recipe("tensorwise"), plain = with_recipe("tensorwise");
  enable_weight_caches(*cached);
  track_weight_amaxes(*cached);
  cached->weight_amax->refresh(cached->weight);
  const Pass want = pass(plain, KeepWeightTransposed::kOn),
             got = pass(cached, KeepWeightTransposed::kOn);
  for (std::size_t i = 0; i < want.results.size(); ++i) {
    EXPECT_TRUE(at::equal(got.results[i], want.results[i])) << i;
  }
  EXPECT_EQ(want.amaxes - got.amaxes, 1u);
  const torch::NoGradGuard no_grad;
  Linear known = with_recipe("tensorwise");
  track_weight_amaxes(*known);
  known->weight_amax->refresh(known->weight);
  const at::Tensor x = torch::randn({24, 48});
  EXPECT_TRUE(at::equal(known(x), plain(x)));
}

}  // namespace
}  // namespace octavo::nn
