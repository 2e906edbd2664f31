#include "octavo/nn/experts.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <sstream>

#include "octavo/nn/convert.h"
#include "octavo/ops/float8_grouped_linear.h"
#include "octavo/ops/swiglu.h"

namespace octavo::nn {
namespace {

Experts seeded_experts(std::int64_t experts, std::int64_t features, std::int64_t hidden) {
  torch::manual_seed(4);
  return Experts(ExpertsOptions{.experts = experts, .features = features, .hidden = hidden});
}

at::Tensor end_offsets(const std::vector<std::int64_t>& sizes) {
  return at::tensor(sizes).cumsum(0, at::kInt);
}

// One expert at a time, each matrix by itself, in fp64.
at::Tensor one_by_one(const Experts& experts, const at::Tensor& x,
                      const std::vector<std::int64_t>& sizes) {
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto e = std::int64_t(i);
    const at::Tensor rows = x.narrow(0, begin, sizes[i]).to(at::kDouble);
    const at::Tensor gate = rows.matmul(experts->gate_proj()[e].to(at::kDouble).t());
    const at::Tensor up = rows.matmul(experts->up_proj()[e].to(at::kDouble).t());
    const at::Tensor hidden = gate / (1 + (-gate).exp()) * up;
    parts.push_back(hidden.matmul(experts->down_proj[e].to(at::kDouble).t()));
    begin += sizes[i];
  }
  return at::cat(parts);
}

// 20 log10 of the norm over the error's: NaN compares as failure.
double decibels(const at::Tensor& got, const at::Tensor& expected) {
  const double error = (got.to(at::kDouble) - expected).norm().item<double>();
  return 20 * std::log10(expected.norm().item<double>() / error);
}

struct FfnRun {
  at::Tensor y, dx, gate_up_grad, down_grad;
};

FfnRun run_experts(Experts& experts, const at::Tensor& x, const at::Tensor& offs,
                   const at::Tensor& dy) {
  experts->zero_grad();
  const at::Tensor input = x.detach().clone().set_requires_grad(true);
  const at::Tensor y = experts(input, offs);
  (y * dy).sum().backward();
  return {y.detach(), input.grad(), experts->gate_up_proj.grad(), experts->down_proj.grad()};
}

TEST(Experts, AreSwigluNetworksByGroups) {
  Experts experts = seeded_experts(4, 12, 20);
  const std::vector<std::int64_t> sizes = {5, 0, 9, 1};
  const at::Tensor x = torch::randn({15, 12});
  const at::Tensor y = experts(x, end_offsets(sizes));
  ASSERT_EQ(y.sizes(), x.sizes());
  // fp32 against fp64: sums of 20 products.
  EXPECT_TRUE(at::allclose(y.to(at::kDouble), one_by_one(experts, x, sizes), 1e-4, 1e-6));
  EXPECT_EQ(experts(at::empty({0, 12}), end_offsets({0, 0, 0, 0})).sizes(),
            (std::vector<std::int64_t>{0, 12}));
}

TEST(Experts, WithARecipeAreTwoGroupedFloat8Linears) {
  Experts experts = seeded_experts(3, 64, 96);
  const at::Tensor x = torch::randn({40, 64}), offs = end_offsets({17, 0, 23});
  for (const char* recipe : {"rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"}) {
    experts->recipe = Recipe::parse(recipe);
    const at::Tensor both = float8_grouped_linear(x, experts->gate_up_proj, offs, *experts->recipe);
    const at::Tensor hidden = swiglu(both);
    const at::Tensor expected =
        float8_grouped_linear(hidden, experts->down_proj, offs, *experts->recipe);
    EXPECT_TRUE(at::equal(experts(x, offs), expected)) << recipe;
    EXPECT_FALSE(at::equal(experts(x, offs), seeded_experts(3, 64, 96)(x, offs))) << recipe;
  }
}

TEST(Experts, FusedHasTheBitsOfTwoLinears) {
  torch::manual_seed(8);
  const at::Tensor x = torch::randn({41, 64}), dy = torch::randn({41, 64});
  const at::Tensor offs = end_offsets({17, 0, 23, 1});
  for (const char* recipe : {"rowwise", "rowwise(flavour=fnuz)", "rowwise_with_gw_hp", "blockwise",
                             "mxfp8", "mxfp8(gw_high_precision=true)"}) {
    Experts apart = seeded_experts(4, 64, 96), fused = seeded_experts(4, 64, 96);
    apart->recipe = fused->recipe = Recipe::parse(recipe);
    set_fusion(*apart, false);
    EXPECT_FALSE(apart->fusion);
    const FfnRun want = run_experts(apart, x, offs, dy), got = run_experts(fused, x, offs, dy);
    EXPECT_TRUE(at::equal(got.y, want.y)) << recipe;
    EXPECT_TRUE(at::equal(got.dx, want.dx)) << recipe;
    EXPECT_TRUE(at::equal(got.gate_up_grad, want.gate_up_grad)) << recipe;
    EXPECT_TRUE(at::equal(got.down_grad, want.down_grad)) << recipe;
  }
}

// A whole expert network against fp64: at least 22 dB for the output and every gradient (21 with
// MX scales rounded by FLOOR, which clips the top of a block).
TEST(Experts, OutputAndEveryGradientAreNearHighPrecision) {
  const std::vector<std::int64_t> sizes = {44, 0, 20, 130};
  const at::Tensor offs = end_offsets(sizes);
  torch::manual_seed(8);
  const at::Tensor x = torch::randn({194, 128}), dy = torch::randn({194, 128});
  Experts plain = seeded_experts(4, 128, 128);
  const FfnRun expected = run_experts(plain, x, offs, dy);
  for (const char* recipe : {"rowwise", "rowwise(flavour=fnuz)", "rowwise_with_gw_hp", "blockwise",
                             "blockwise(flavour=fnuz)", "mxfp8", "mxfp8(mx_rounding=floor)"}) {
    Experts experts = seeded_experts(4, 128, 128);
    experts->recipe = Recipe::parse(recipe);
    const FfnRun got = run_experts(experts, x, offs, dy);
    const double least = std::string(recipe).find("floor") == std::string::npos ? 22 : 21;
    EXPECT_TRUE(decibels(got.y, expected.y.to(at::kDouble)) >= least) << recipe;
    EXPECT_TRUE(decibels(got.dx, expected.dx.to(at::kDouble)) >= least) << recipe;
    EXPECT_TRUE(decibels(got.gate_up_grad, expected.gate_up_grad.to(at::kDouble)) >= least)
        << recipe;
    EXPECT_TRUE(decibels(got.down_grad, expected.down_grad.to(at::kDouble)) >= least) << recipe;
    // The expert without tokens.
    EXPECT_TRUE(at::equal(got.gate_up_grad[1], at::zeros_like(got.gate_up_grad[1]))) << recipe;
    EXPECT_TRUE(at::equal(got.down_grad[1], at::zeros_like(got.down_grad[1]))) << recipe;
  }
}

TEST(Experts, NamesInitialisationAndPrint) {
  Experts experts = seeded_experts(8, 100, 64);
  std::vector<std::string> names;
  for (const auto& item : experts->named_parameters()) names.push_back(item.key());
  EXPECT_EQ(names, (std::vector<std::string>{"gate_up_proj", "down_proj"}));
  EXPECT_EQ(experts->gate_up_proj.sizes(), (std::vector<std::int64_t>{8, 128, 100}));
  EXPECT_EQ(experts->down_proj.sizes(), (std::vector<std::int64_t>{8, 100, 64}));
  // Uniform within 1 / sqrt(in_features): 0.1 and 0.125.
  EXPECT_NEAR(experts->gate_up_proj.abs().max().item<double>(), 0.1, 1e-4);
  EXPECT_NEAR(experts->down_proj.abs().max().item<double>(), 0.125, 1e-4);
  experts->recipe = Recipe::parse("mxfp8");
  std::ostringstream text;
  text << *experts;
  EXPECT_EQ(text.str(), "octavo::nn::Experts(8 experts, 100, 64, recipe mxfp8)");
  EXPECT_THROW(seeded_experts(0, 4, 4), c10::Error);
}

}  // namespace
}  // namespace octavo::nn
