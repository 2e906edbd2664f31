#include "octavo/nn/rms_norm.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

#include "octavo/nn/embedding.h"
#include "octavo/nn/router.h"
#include "tests/error_of.h"

namespace octavo::nn {
namespace {

struct Result {
  at::Tensor y, dx, dw;
};

// Scalar reference in fp64, element by element from the formula and its derivative.
Result reference(const at::Tensor& x_in, const at::Tensor& w_in, const at::Tensor& g_in,
                 double eps) {
  const std::int64_t D = w_in.size(0), M = x_in.numel() / std::max<std::int64_t>(D, 1);
  const auto as_double = [](const at::Tensor& t) {
    return t.detach().to(at::kDouble).contiguous();
  };
  const at::Tensor x = as_double(x_in), w = as_double(w_in), g = as_double(g_in);
  Result result{at::zeros_like(x), at::zeros_like(x), at::zeros_like(w)};
  const double *xs = x.data_ptr<double>(), *ws = w.data_ptr<double>(), *gs = g.data_ptr<double>();
  double *y = result.y.data_ptr<double>(), *dx = result.dx.data_ptr<double>(),
         *dw = result.dw.data_ptr<double>();
  for (std::int64_t m = 0; m < M; ++m) {
    double squares = 0, product = 0;
    for (std::int64_t d = 0; d < D; ++d) {
      squares += xs[m * D + d] * xs[m * D + d];
      product += gs[m * D + d] * ws[d] * xs[m * D + d];
    }
    const double r = 1.0 / std::sqrt(squares / double(D) + eps);
    for (std::int64_t d = 0; d < D; ++d) {
      const std::int64_t i = m * D + d;
      y[i] = xs[i] * r * ws[d];
      dx[i] = r * gs[i] * ws[d] - xs[i] * r * r * r * product / double(D);
      dw[d] += gs[i] * xs[i] * r;
    }
  }
  return result;
}

Result ours(const at::Tensor& x_in, const at::Tensor& w_in, const at::Tensor& g, double eps) {
  const at::Tensor x = x_in.detach().requires_grad_(true), w = w_in.detach().requires_grad_(true);
  const at::Tensor y = rms_norm(x, w, eps);
  const auto gradients = torch::autograd::grad({y}, {x, w}, {g});
  return {y.detach(), gradients[0], gradients[1]};
}

// |a - b| relative to b's largest magnitude.
double relative_error(const at::Tensor& a, const at::Tensor& b) {
  if (b.numel() == 0) return a.numel() == 0 ? 0.0 : 1.0;
  const double largest = std::max(b.abs().max().item<double>(), 1e-30);
  return (a.to(at::kDouble) - b).abs().max().item<double>() / largest;
}

TEST(RMSNorm, MatchesTheScalarReference) {
  torch::manual_seed(0);
  for (const std::int64_t M : {0, 1, 15, 127}) {
    for (const std::int64_t D : {1, 15, 33, 192}) {
      for (const double scale : {1.0, 1e-4, 1e4}) {
        const at::Tensor x = torch::randn({M, D}) * scale, w = torch::randn({D});
        const at::Tensor g = torch::randn({M, D});
        const Result expected = reference(x, w, g, 1e-5), got = ours(x, w, g, 1e-5);
        // fp32: a handful of roundings and sums of up to 192 terms (dw: 127), which grow with the
        // square root of their length: under 40 * 2^-24.
        const double tolerance = 2.5e-6;
        EXPECT_TRUE(relative_error(got.y, expected.y) <= tolerance)
            << M << " " << D << " " << scale;
        if (M == 0) {
          EXPECT_TRUE(at::equal(got.dw, at::zeros({D})));
          continue;
        }
        // dx is a difference and dw a sum of terms of both signs, which may cancel (dx nearly does
        // for D = 1): measured against the size of their terms.
        const at::Tensor r = (x.to(at::kDouble).square().mean(1, true) + 1e-5).rsqrt();
        const auto within = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& terms) {
          return (a.to(at::kDouble) - b).abs().max().item<double>() <=
                 tolerance * terms.max().item<double>();
        };
        EXPECT_TRUE(within(got.dx, expected.dx, (r * g * w).abs()))
            << M << " " << D << " " << scale;
        EXPECT_TRUE(within(got.dw, expected.dw, (g * x * r).abs().sum(0)))
            << M << " " << D << " " << scale;
      }
    }
  }
}

TEST(RMSNorm, LeadingDimensionsStridesAndHalfPrecision) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({3, 24, 5}).transpose(1, 2);  // (3, 5, 24), strided
  const at::Tensor w = torch::randn({24});
  const at::Tensor y = rms_norm(x, w, 1e-5);
  EXPECT_EQ(y.sizes(), x.sizes());
  EXPECT_TRUE(at::equal(y, rms_norm(x.contiguous().view({15, 24}), w, 1e-5).view({3, 5, 24})));
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor low = x.to(type), low_w = w.to(type);
    const at::Tensor low_y = rms_norm(low, low_w, 1e-5);
    ASSERT_EQ(low_y.scalar_type(), type);
    // Computed in fp32 and rounded once.
    EXPECT_TRUE(
        at::equal(low_y, rms_norm(low.to(at::kFloat), low_w.to(at::kFloat), 1e-5).to(type)));
  }
}

TEST(RMSNorm, ANotANumberStaysInItsRow) {
  at::Tensor x = torch::ones({4, 8});
  x[1][3] = std::numeric_limits<float>::quiet_NaN();
  x[2][0] = std::numeric_limits<float>::infinity();
  const at::Tensor y = rms_norm(x, torch::ones({8}), 1e-5);
  EXPECT_TRUE(y[0].isfinite().all().item<bool>());
  EXPECT_TRUE(y[1].isnan().all().item<bool>());
  EXPECT_TRUE(y[2].isnan().any().item<bool>());  // Inf * 0
  EXPECT_TRUE(y[3].isfinite().all().item<bool>());
}

TEST(RMSNorm, OnlyTheGradientsAskedFor) {
  const at::Tensor x = torch::randn({4, 8}), w = torch::ones({8});
  EXPECT_FALSE(rms_norm(x, w, 1e-5).requires_grad());
  const at::Tensor x_leaf = x.clone().requires_grad_(true);
  rms_norm(x_leaf, w, 1e-5).sum().backward();
  EXPECT_TRUE(x_leaf.grad().defined());
  const at::Tensor w_leaf = w.clone().requires_grad_(true);
  rms_norm(x, w_leaf, 1e-5).sum().backward();
  EXPECT_TRUE(w_leaf.grad().defined());
}

TEST(RMSNorm, TheModuleStartsAtOneAndChecksSizes) {
  RMSNorm norm(RMSNormOptions{.features = 8});
  EXPECT_TRUE(at::equal(norm->weight, torch::ones({8})));
  EXPECT_EQ(norm->named_parameters().keys(), std::vector<std::string>{"weight"});
  EXPECT_THROW(norm(torch::ones({2, 7})), c10::Error);
}

TEST(RMSNorm, OptionsThatHaveNoMeaningFailAtConstruction) {
  for (const double eps : {-1e-5, std::nan(""), HUGE_VAL}) {
    const std::string error =
        testing::error_of([&] { RMSNorm norm(RMSNormOptions{.features = 8, .eps = eps}); });
    EXPECT_NE(error.find("RMSNorm: eps: expected a finite number, 0 or more"), error.npos) << error;
  }
  const auto expect = [](const std::string& part, const auto& construct) {
    const std::string error = testing::error_of(construct);
    EXPECT_NE(error.find(part), error.npos) << error;
  };
  expect("RMSNorm: features: expected", [] { RMSNorm norm(RMSNormOptions{.features = -1}); });
  expect("Linear: expected in_features and out_features of 0 or more, got -1 and 4",
         [] { Linear linear(LinearOptions{.in_features = -1, .out_features = 4}); });
  expect("Embedding: expected vocabulary and features of at least 1, got 0 and 4",
         [] { Embedding embedding(EmbeddingOptions{.vocabulary = 0, .features = 4}); });
  expect("Router: features: expected at least 1, got 0",
         [] { Router router(RouterOptions{.features = 0, .experts = 2}); });
}

}  // namespace
}  // namespace octavo::nn
