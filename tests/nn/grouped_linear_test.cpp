#include "octavo/nn/grouped_linear.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <vector>

#include "tests/error_of.h"

namespace octavo::nn {
namespace {

using testing::error_of;

at::Tensor offs_of(const std::vector<std::int64_t>& sizes) {
  return at::tensor(sizes).cumsum(0, at::kInt);
}

std::int64_t sum_of(const std::vector<std::int64_t>& sizes) {
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) sum += size;
  return sum;
}

// The experts one after the other, in plain torch operations.
at::Tensor loop(const at::Tensor& x, const at::Tensor& w, const std::vector<std::int64_t>& sizes) {
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (std::size_t e = 0; e < sizes.size(); ++e) {
    parts.push_back(x.narrow(0, begin, sizes[e]).matmul(w[std::int64_t(e)].t()));
    begin += sizes[e];
  }
  return at::cat(parts);
}

TEST(GroupedLinear, EqualsALoopOverTheExperts) {
  torch::manual_seed(1);
  const std::vector<std::vector<std::int64_t>> cases = {{5, 0, 7, 1},
                                                        {16, 16, 0},
                                                        {0, 32},
                                                        {0, 0, 16},
                                                        {33},
                                                        {0, 0, 0},
                                                        std::vector<std::int64_t>(64, 1)};
  for (const auto& sizes : cases) {
    const std::int64_t rows = sum_of(sizes), experts = std::int64_t(sizes.size());
    at::Tensor x = torch::randn({rows, 9}).set_requires_grad(true);
    at::Tensor w = torch::randn({experts, 6, 9}).set_requires_grad(true);
    at::Tensor x2 = x.detach().clone().set_requires_grad(true);
    at::Tensor w2 = w.detach().clone().set_requires_grad(true);
    const at::Tensor dy = torch::randn({rows, 6});
    const at::Tensor y = grouped_linear(x, w, offs_of(sizes));
    const at::Tensor expected = loop(x2, w2, sizes);
    // One product of the same numbers; the order of nine or fewer sums may differ.
    EXPECT_TRUE(at::allclose(y, expected, 1e-5, 1e-5));
    (y * dy).sum().backward();
    (expected * dy).sum().backward();
    EXPECT_TRUE(at::allclose(x.grad(), x2.grad(), 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(w.grad(), w2.grad(), 1e-5, 1e-5));
    for (std::int64_t e = 0; e < experts; ++e) {
      if (sizes[std::size_t(e)] > 0) continue;
      EXPECT_TRUE(at::equal(w.grad()[e], at::zeros_like(w.grad()[e]))) << e;
    }
  }
}

TEST(GroupedLinear, GradientsNotAskedForAreUndefined) {
  at::Tensor x = torch::randn({4, 3}), w = torch::randn({2, 5, 3}).set_requires_grad(true);
  grouped_linear(x, w, offs_of({1, 3})).sum().backward();
  EXPECT_TRUE(w.grad().defined());
  EXPECT_FALSE(x.grad().defined());
  w = w.detach();
  x.set_requires_grad(true);
  grouped_linear(x, w, offs_of({1, 3})).sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(GroupedLinear, Bfloat16) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({12, 16}), w = torch::randn({3, 8, 16});
  const at::Tensor y = grouped_linear(x.to(at::kBFloat16), w.to(at::kBFloat16), offs_of({5, 0, 7}));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  // Three roundings of 2^-9 each against numbers near 4.
  EXPECT_TRUE(at::allclose(y.to(at::kFloat), loop(x, w, {5, 0, 7}), 2e-2, 1e-1));
}

TEST(GroupedLinear, ErrorsNameTheArgument) {
  const at::Tensor x = torch::randn({8, 4}), w = torch::randn({2, 5, 4});
  const auto error = [&](const at::Tensor& x, const at::Tensor& w, const at::Tensor& offs) {
    return error_of([&] { grouped_linear(x, w, offs); });
  };
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(error(x, w.transpose(1, 2), offs_of({4, 4})), "must agree in K");
  has(error(x, w.to(at::kDouble), offs_of({4, 4})), "expected x's dtype");
  has(error(x, w, offs_of({4, 4}).to(at::kLong)), "int32");
  has(error(x, w, offs_of({4, 2, 2})), "one END offset for each of 2 groups");
  has(error(x, w, at::tensor({8, 4}, at::kInt)), "never decrease");
  has(error(x, w, offs_of({4, 5})), "got 9");
  has(error(x, w, offs_of({4, 3})), "expected the last END offset to be the number of rows, 8");
}

}  // namespace
}  // namespace octavo::nn
