#include "octavo/models/rope.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cmath>

namespace octavo::models {
namespace {

// Scalar reference, straight from the definition: feature i turns with feature i + P/2 by the angle
// t * theta^(-2i/P), in fp64.
at::Tensor reference_rotate(const at::Tensor& x, std::int64_t first_position, double theta,
                            double sign = 1.0) {
  const at::Tensor in = x.detach().to(at::kDouble).contiguous();
  at::Tensor out = at::empty_like(in);
  const auto source = in.accessor<double, 4>();
  auto y = out.accessor<double, 4>();
  const std::int64_t half = in.size(3) / 2;
  for (std::int64_t b = 0; b < in.size(0); ++b)
    for (std::int64_t t = 0; t < in.size(1); ++t)
      for (std::int64_t h = 0; h < in.size(2); ++h)
        for (std::int64_t i = 0; i < half; ++i) {
          const double angle =
              double(first_position + t) * std::pow(theta, -2.0 * double(i) / double(2 * half));
          const double cosine = std::cos(angle), sine = sign * std::sin(angle);
          y[b][t][h][i] = source[b][t][h][i] * cosine - source[b][t][h][i + half] * sine;
          y[b][t][h][i + half] = source[b][t][h][i + half] * cosine + source[b][t][h][i] * sine;
        }
  return out;
}

// As queries, with the first head as keys.
at::Tensor turned(const at::Tensor& x, const RopeTable& table) {
  const auto [q, k] = rotate(x, x.narrow(-2, 0, 1), table);
  EXPECT_TRUE(at::equal(k, q.narrow(-2, 0, 1)));
  return q;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0.0 : (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(Rope, MatchesTheDefinitionForAwkwardSizes) {
  torch::manual_seed(0);
  const double theta = 500000.0;
  for (const std::int64_t head_dim : {2, 6, 32, 46, 128}) {
    for (const std::int64_t sequence : {0, 1, 15, 127}) {
      for (const std::int64_t begin : {0, 33}) {
        const RopeTable table =
            make_rope_table(sequence + begin, head_dim, theta, at::kCPU).slice(begin, sequence);
        at::Tensor x = torch::randn({2, sequence, 3, head_dim}).requires_grad_(true);
        const at::Tensor y = turned(x, table);
        ASSERT_EQ(y.sizes(), x.sizes());
        ASSERT_EQ(y.scalar_type(), at::kFloat);
        // Two products and a sum in fp32, |x| < 6, table entries rounded to fp32: each of the
        // four errors is at most 2^-24 * 6 * sqrt(2).
        const double tolerance = 2.1e-6;
        EXPECT_TRUE(largest_difference(y, reference_rotate(x, begin, theta)) <= tolerance)
            << head_dim << " " << sequence << " " << begin;

        // The gradient turns back.
        const at::Tensor g = torch::randn_like(x);
        const at::Tensor dx = torch::autograd::grad({y}, {x}, {g})[0];
        EXPECT_TRUE(largest_difference(dx, reference_rotate(g, begin, theta, -1.0)) <= tolerance)
            << head_dim << " " << sequence << " " << begin;
      }
    }
  }
}

TEST(Rope, TableIsExactAtTheLongestPosition) {
  const std::int64_t sequence = 8192, head_dim = 128;
  const RopeTable table = make_rope_table(sequence, head_dim, 500000.0, at::kCPU);
  for (const std::int64_t i : {0, 1, 31, 63}) {
    const double angle = double(sequence - 1) * std::pow(500000.0, -2.0 * double(i) / head_dim);
    // One rounding to fp32 of numbers up to 1; fp64 angles up to 8191 are good to 1e-12.
    const double ulp = std::ldexp(1.0, -24);
    const float cosine = table.cosine[sequence - 1][0][i].item<float>();
    const float sine = table.sine[sequence - 1][0][i + 64].item<float>();
    EXPECT_TRUE(std::abs(double(cosine) - std::cos(angle)) <= ulp) << i;
    EXPECT_TRUE(std::abs(double(sine) - std::sin(angle)) <= ulp) << i;
    EXPECT_EQ(table.cosine[sequence - 1][0][i + 64].item<float>(), cosine);
    EXPECT_EQ(table.sine[sequence - 1][0][i].item<float>(), -sine);
  }
}

TEST(Rope, StridedAndHalfPrecisionInputs) {
  torch::manual_seed(1);
  const RopeTable table = make_rope_table(9, 16, 10000.0, at::kCPU);
  const at::Tensor x = torch::randn({2, 3, 9, 16}).transpose(1, 2);  // (2, 9, 3, 16)
  EXPECT_TRUE(at::equal(turned(x, table), turned(x.contiguous(), table)));
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor low = x.to(type);
    const at::Tensor y = turned(low, table);
    ASSERT_EQ(y.scalar_type(), type);
    // Computed in fp32 and rounded once: bit-equal to rounding the fp32 result.
    EXPECT_TRUE(at::equal(y, turned(low.to(at::kFloat), table).to(type)));
  }
}

TEST(Rope, ATableOfOtherSizesIsAnError) {
  const RopeTable table = make_rope_table(8, 16, 10000.0, at::kCPU);
  EXPECT_THROW(turned(at::zeros({1, 7, 2, 16}), table), c10::Error);
  EXPECT_THROW(turned(at::zeros({1, 8, 2, 8}), table), c10::Error);
  EXPECT_THROW(turned(at::zeros({8, 2, 16}), table), c10::Error);
}

}  // namespace
}  // namespace octavo::models
