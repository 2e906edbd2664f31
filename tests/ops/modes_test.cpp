// float8_linear under the modes a model runs in: grad, no-grad, inference, autocast; and sizes.
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/ops/reference.h"

namespace octavo {
namespace {

using testing::leaf;
using testing::same_bits;

class Autocast {
 public:
  explicit Autocast(at::ScalarType dtype) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
};

// field_cases, Module and autograd: "Inference mode, no-grad and grad mode give the same bits:
// input (32,512,1024), MLP 1024->4096->1024."
TEST(Modes, InferenceModeNoGradAndGradModeGiveTheSameBits) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({32, 512, 1024}, at::kBFloat16);
  const at::Tensor up = leaf(at::randn({4096, 1024}) / 32, at::kBFloat16),
                   down = leaf(at::randn({1024, 4096}) / 64, at::kBFloat16);
  const auto mlp = [&] {
    return float8_linear(at::relu(float8_linear(x, up, std::nullopt, Recipe{})), down, std::nullopt,
                         Recipe{});
  };
  const at::Tensor grad_mode = mlp();
  EXPECT_TRUE(grad_mode.requires_grad());
  {
    at::NoGradGuard no_grad;
    const at::Tensor y = mlp();
    EXPECT_FALSE(y.requires_grad());
    EXPECT_TRUE(same_bits(grad_mode.detach(), y));
  }
  {
    c10::InferenceMode inference;
    const at::Tensor y = mlp();
    EXPECT_TRUE(y.is_inference());
    EXPECT_TRUE(same_bits(grad_mode.detach(), y));
  }
}

TEST(Modes, EveryRecipeGivesTheSameBitsInEveryMode) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({3, 50, 136});
  const at::Tensor w = leaf(at::randn({72, 136}), at::kFloat),
                   bias = leaf(at::randn({72}), at::kFloat);
  for (const std::string& text : testing::recipes()) {
    SCOPED_TRACE(text);
    const Recipe recipe = Recipe::parse(text);
    const at::Tensor grad_mode = float8_linear(x, w, bias, recipe);
    at::NoGradGuard no_grad;
    EXPECT_TRUE(same_bits(grad_mode, float8_linear(x, w, bias, recipe)));
    c10::InferenceMode inference;
    EXPECT_TRUE(same_bits(grad_mode, float8_linear(x, w, bias, recipe)));
  }
}

// field_cases, Module and autograd: "Autocast with fp32 weights: bf16 output, fp32 weight.grad."
TEST(Modes, AutocastWithFp32WeightsBf16OutputFp32WeightGrad) {
  for (const std::string& text : testing::recipes()) {
    SCOPED_TRACE(text);
    const Recipe recipe = Recipe::parse(text);
    at::manual_seed(3);
    const at::Tensor x = leaf(at::randn({40, 136}), at::kFloat),
                     w = leaf(at::randn({72, 136}), at::kFloat),
                     bias = leaf(at::randn({72}), at::kFloat);
    const at::Tensor dy = at::randn({40, 72}, at::kBFloat16);
    at::Tensor y;
    {
      const Autocast autocast(at::kBFloat16);
      y = float8_linear(x, w, bias, recipe);
      torch::autograd::backward({y}, {dy});  // inside the region too
    }
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
    EXPECT_EQ(bias.grad().scalar_type(), at::kFloat);
    EXPECT_EQ(x.grad().scalar_type(), at::kFloat);

    // The same as casting x by hand: w is quantised from fp32, and no product ran in bf16.
    const at::Tensor x16 = leaf(x, at::kBFloat16), w2 = leaf(w, at::kFloat),
                     bias2 = leaf(bias, at::kFloat);
    const at::Tensor y2 = float8_linear(x16, w2, bias2, recipe);
    torch::autograd::backward({y2}, {dy});
    EXPECT_TRUE(same_bits(y.detach(), y2.detach()));
    EXPECT_TRUE(same_bits(w.grad(), w2.grad()));
    EXPECT_TRUE(same_bits(bias.grad(), bias2.grad()));
    EXPECT_TRUE(same_bits(x.grad(), x16.grad().to(at::kFloat)));
  }
}

TEST(Modes, AutocastFp16AndBackwardOutside) {
  const at::Tensor x = leaf(at::randn({8, 16}), at::kFloat),
                   w = leaf(at::randn({8, 16}), at::kFloat);
  at::Tensor y;
  {
    const Autocast autocast(at::kHalf);
    y = float8_linear(x, w, std::nullopt, Recipe{});
  }
  EXPECT_EQ(y.scalar_type(), at::kHalf);
  torch::autograd::backward({y.sum()});
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
}

// field_cases, Module and autograd: "(5,8192,4096) equals its (40960,4096) reshape."
TEST(Modes, LeadingSizes5By8192EqualTheirReshape) {
  at::manual_seed(4);
  const at::Tensor x = at::randn({40960, 4096}, at::kBFloat16);
  const at::Tensor dy = at::randn({40960, 8}, at::kBFloat16);
  at::Tensor flat_dw, flat_y;
  for (const bool flat : {true, false}) {
    const at::Tensor w = leaf(at::ones({8, 4096}) / 64, at::kBFloat16);
    const at::Tensor y =
        float8_linear(flat ? x : x.view({5, 8192, 4096}), w, std::nullopt, Recipe{});
    torch::autograd::backward({y}, {flat ? dy : dy.view({5, 8192, 8})});
    if (flat) {
      flat_y = y.detach();
      flat_dw = w.grad();
    } else {
      EXPECT_EQ(y.sizes(), (std::vector<std::int64_t>{5, 8192, 8}));
      EXPECT_TRUE(same_bits(y.detach().view({40960, 8}), flat_y));
      EXPECT_TRUE(same_bits(w.grad(), flat_dw));
    }
  }
}

}  // namespace
}  // namespace octavo
