#include "octavo/nn/activation_checkpoint.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include "octavo/nn/linear.h"

namespace octavo::nn {
namespace {

// Bytes, because at::equal takes -0 for 0.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
}

// y = x + down(dropout(silu(up(x)))): two linears with biases, a residual and a random mask.
struct Block {
  Linear up{nullptr}, down{nullptr};
  double dropout;

  Block(std::int64_t features, const std::optional<Recipe>& recipe, double dropout)
      : up(LinearOptions{.in_features = features, .out_features = features, .bias = true}),
        down(LinearOptions{.in_features = features, .out_features = features, .bias = true}),
        dropout(dropout) {
    up->recipe = recipe;
    down->recipe = recipe;
  }

  at::Tensor operator()(const at::Tensor& x) const {
    Linear u = up, d = down;
    return x + d(at::dropout(at::silu(u(x)), dropout, /*train=*/true));
  }

  std::vector<at::Tensor> parameters() const {
    return {up->weight, up->bias, down->weight, down->bias};
  }
};

struct Outcome {
  std::vector<at::Tensor> tensors;  // outputs and gradients of every iteration
  at::Tensor next_random;           // what the generator gives afterwards
};

// Two training iterations of three blocks, seeded.
Outcome train(const std::optional<Recipe>& recipe, double dropout, std::int64_t features,
              bool checkpointed, bool autocast) {
  torch::manual_seed(7);
  std::vector<Block> blocks;
  for (int i = 0; i < 3; ++i) blocks.emplace_back(features, recipe, dropout);
  at::Tensor x = torch::randn({24, features});
  x.set_requires_grad(true);
  Outcome run;
  for (int iteration = 0; iteration < 2; ++iteration) {
    at::autocast::set_autocast_enabled(at::kCPU, autocast);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::Tensor y = x;
    for (const Block& block : blocks) {
      y = checkpointed ? checkpoint([&block](const at::Tensor& x) { return block(x); }, y)
                       : block(y);
    }
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    run.tensors.push_back(y.detach().clone());
    (y.to(at::kFloat) * torch::randn_like(y, at::kFloat)).sum().backward();
    run.tensors.push_back(x.grad().clone());
    for (const Block& block : blocks) {
      for (at::Tensor parameter : block.parameters()) {
        run.tensors.push_back(parameter.grad().clone());
        torch::NoGradGuard no_grad;
        parameter.sub_(parameter.grad(), 0.01);
        parameter.mutable_grad().zero_();
      }
    }
  }
  run.next_random = torch::rand({4});
  return run;
}

TEST(ActivationCheckpoint, TheComparisonSeesTheSignOfZero) {
  EXPECT_TRUE(same_bits(torch::zeros({3}), torch::zeros({3})));
  EXPECT_FALSE(same_bits(torch::zeros({3}), -torch::zeros({3})));
}

void expect_same(const Outcome& plain, const Outcome& checkpointed) {
  ASSERT_EQ(plain.tensors.size(), checkpointed.tensors.size());
  for (std::size_t i = 0; i < plain.tensors.size(); ++i) {
    EXPECT_TRUE(same_bits(plain.tensors[i], checkpointed.tensors[i])) << "tensor " << i;
  }
  EXPECT_TRUE(same_bits(plain.next_random, checkpointed.next_random))
      << "the generator must stand where it would without checkpoints";
}

// field_cases, Module and autograd: "Checkpointed and plain, 768x768, 2 iterations: outputs and
// grads bit-equal".
TEST(ActivationCheckpoint, CheckpointedAndPlain768TwoIterationsBitEqual) {
  expect_same(train(std::nullopt, 0.0, 768, false, false),
              train(std::nullopt, 0.0, 768, true, false));
  const Recipe rowwise;
  expect_same(train(rowwise, 0.0, 768, false, false), train(rowwise, 0.0, 768, true, false));
}

TEST(ActivationCheckpoint, EveryRecipeWithDropout) {
  for (const std::string text : {"tensorwise", "rowwise", "rowwise(flavour=fnuz)",
                                 "rowwise_with_gw_hp", "blockwise", "mxfp8"}) {
    SCOPED_TRACE(text);
    const Recipe recipe = Recipe::parse(text);
    const Outcome plain = train(recipe, 0.25, 96, false, false);
    expect_same(plain, train(recipe, 0.25, 96, true, false));
    // The mask matters: with another one the outputs differ.
    EXPECT_FALSE(same_bits(plain.tensors[0], train(recipe, 0.3, 96, true, false).tensors[0]));
  }
}

TEST(ActivationCheckpoint, AutocastStateIsThatOfForward) {
  // backward() runs outside the autocast region here, so the state must come from forward.
  expect_same(train(std::nullopt, 0.25, 96, false, true),
              train(std::nullopt, 0.25, 96, true, true));
  const Recipe rowwise;
  const Outcome plain = train(rowwise, 0.25, 96, false, true);
  expect_same(plain, train(rowwise, 0.25, 96, true, true));
  EXPECT_EQ(plain.tensors[1].scalar_type(), at::kFloat);
}

TEST(ActivationCheckpoint, AutocastCacheDoesNotSwallowGradients) {
  // The same weight inside a checkpoint (first, unrecorded) and outside it, in one region.
  const Block block(32, std::nullopt, 0.0);
  at::Tensor x = torch::randn({8, 32});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::Tensor y = checkpoint([&](const at::Tensor& x) { return block(x); }, x);
  y = block(y);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  y.to(at::kFloat).sum().backward();
  const at::Tensor both = block.up->weight.grad().clone();
  block.up->weight.mutable_grad() = at::Tensor();
  y = checkpoint([&](const at::Tensor& x) { return block(x); }, x);
  y.sum().backward();
  EXPECT_TRUE(both.defined());
  EXPECT_FALSE(same_bits(both, block.up->weight.grad())) << "only one of two uses had a gradient";
}

TEST(ActivationCheckpoint, ParametersGetGradientsWhereXNeedsNone) {
  const Block block(32, std::nullopt, 0.0);
  const at::Tensor x = torch::randn({8, 32});
  at::Tensor y = checkpoint([&](const at::Tensor& x) { return block(x); }, x);
  EXPECT_TRUE(y.requires_grad());
  y.sum().backward();
  const at::Tensor checkpointed = block.up->weight.grad().clone();
  EXPECT_FALSE(x.grad().defined());
  block.up->weight.mutable_grad() = at::Tensor();
  block(x).sum().backward();
  EXPECT_TRUE(same_bits(checkpointed, block.up->weight.grad()));
}

TEST(ActivationCheckpoint, NothingRequiresAGradient) {
  const Block block(32, std::nullopt, 0.0);
  for (at::Tensor parameter : block.parameters()) parameter.set_requires_grad(false);
  at::Tensor x = torch::randn({8, 32}).set_requires_grad(true);
  at::Tensor y = checkpoint([&](const at::Tensor& x) { return block(x.detach()); }, x);
  y.sum().backward();  // the recomputed block records nothing: no gradient, no error
  EXPECT_FALSE(x.grad().defined());
}

TEST(ActivationCheckpoint, WithoutGradModeItIsTheBlock) {
  const Block block(32, std::nullopt, 0.0);
  const at::Tensor x = torch::randn({8, 32});
  torch::NoGradGuard no_grad;
  int calls = 0;
  const at::Tensor y = checkpoint(
      [&](const at::Tensor& x) {
        ++calls;
        return block(x);
      },
      x);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(same_bits(y, block(x)));
}

TEST(ActivationCheckpoint, BlockRunsOnceInForwardAndOnceInBackward) {
  const Block block(32, Recipe{}, 0.0);
  at::Tensor x = torch::randn({8, 32}).set_requires_grad(true);
  std::vector<bool> recorded;
  at::Tensor y = checkpoint(
      [&](const at::Tensor& x) {
        at::Tensor y = block(x);
        recorded.push_back(y.requires_grad());
        return y;
      },
      x);
  EXPECT_EQ(recorded, (std::vector<bool>{false})) << "forward must keep no graph";
  y.sum().backward();
  EXPECT_EQ(recorded, (std::vector<bool>{false, true}));
}

TEST(ActivationCheckpoint, ErrorsSayWhatToDo) {
  const Block block(32, std::nullopt, 0.0);
  at::Tensor x = torch::randn({8, 32}).set_requires_grad(true);
  const auto run = [&] { return checkpoint([&](const at::Tensor& x) { return block(x); }, x); };
  try {
    torch::autograd::grad({run().sum()}, {x});
    FAIL() << "autograd::grad() must be refused";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("call backward()"), std::string::npos);
  }
  EXPECT_THROW(
      torch::autograd::backward({run().sum()}, {}, /*retain_graph=*/true, /*create_graph=*/true),
      c10::Error);
}

TEST(ActivationCheckpoint, SeveralResultsEachWithItsGradient) {
  const auto gradients = [](bool checkpointed) {
    torch::manual_seed(3);
    const at::Tensor w = torch::randn({4}).set_requires_grad(true);
    const at::Tensor x = torch::randn({4}).set_requires_grad(true);
    const auto block = [&w](const at::Tensor& x) {
      return std::vector<at::Tensor>{x * w, (x * x * w).sum(), at::arange(3, at::kLong)};
    };
    const auto results = checkpointed ? checkpoint(block, x) : block(x);
    EXPECT_FALSE(results[2].requires_grad());
    EXPECT_TRUE(at::equal(results[2], at::arange(3, at::kLong)));
    (results[0].sum() + 0.5 * results[1]).backward();
    return std::vector<at::Tensor>{x.grad(), w.grad()};
  };
  const auto got = gradients(true), expected = gradients(false);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], expected[i])) << i;
}

}  // namespace
}  // namespace octavo::nn
