#include "octavo/nn/permute.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <vector>

namespace octavo::nn {
namespace {

at::Tensor choices_of(std::int64_t tokens, std::int64_t copies, std::int64_t experts) {
  std::vector<at::Tensor> rows;
  for (std::int64_t i = 0; i < tokens; ++i) {
    rows.push_back(at::randperm(experts, at::kLong).narrow(0, 0, copies));
  }
  return tokens > 0 ? at::stack(rows) : at::empty({0, copies}, at::kLong);
}

TEST(Permute, SortsByExpertAndKeepsTheTokensOrder) {
  const at::Tensor experts = at::tensor({2, 0, 0, 3, 2, 0, 3, 0}, at::kLong).view({4, 2});
  const Permutation order = sort_by_expert(experts, 5);
  const auto list = [](const at::Tensor& t) {
    const at::Tensor whole = t.to(at::kLong).contiguous();
    return std::vector<std::int64_t>(whole.data_ptr<std::int64_t>(),
                                     whole.data_ptr<std::int64_t>() + whole.numel());
  };
  EXPECT_EQ(list(order.tokens_per_expert), (std::vector<std::int64_t>{4, 0, 2, 2, 0}));
  EXPECT_EQ(list(order.offs), (std::vector<std::int64_t>{4, 4, 6, 8, 8}));
  EXPECT_EQ(order.offs.scalar_type(), at::kInt);
  EXPECT_EQ(list(order.choice), (std::vector<std::int64_t>{1, 2, 5, 7, 0, 4, 3, 6}));
  EXPECT_EQ(list(order.token), (std::vector<std::int64_t>{0, 1, 2, 3, 0, 2, 1, 3}));
  EXPECT_EQ(list(order.row), (std::vector<std::int64_t>{4, 0, 1, 6, 5, 2, 7, 3}));
}

TEST(Permute, BothWaysAndTheirGradientsAreThoseOfTheMatrix) {
  torch::manual_seed(2);
  for (const std::int64_t tokens : {0, 1, 13}) {
    for (const std::int64_t copies : {1, 3}) {
      const Permutation order = sort_by_expert(choices_of(tokens, copies, 4), 4);
      // P[r, m] = 1 where sorted row r is a copy of token m.
      at::Tensor P = at::zeros({tokens * copies, tokens});
      P.scatter_(1, order.token.unsqueeze(1), 1.0);
      EXPECT_TRUE(at::equal(P.sum(0), at::full({tokens}, double(copies))));
      const at::Tensor x = torch::randn({tokens, 5}).set_requires_grad(true);
      const at::Tensor dy = torch::randn({tokens * copies, 5});
      const at::Tensor y = permute(x, order);
      EXPECT_TRUE(at::equal(y, P.matmul(x.detach())));
      (y * dy).sum().backward();
      // Three terms in another order.
      EXPECT_TRUE(at::allclose(x.grad(), P.t().matmul(dy), 1e-5, 1e-6));

      const at::Tensor rows = torch::randn({tokens * copies, 5}).set_requires_grad(true);
      const at::Tensor dz = torch::randn({tokens, 5});
      const at::Tensor z = unpermute(rows, order);
      EXPECT_TRUE(at::allclose(z, P.t().matmul(rows.detach()), 1e-5, 1e-6));
      (z * dz).sum().backward();
      EXPECT_TRUE(at::equal(rows.grad(), P.matmul(dz)));
    }
  }
}

TEST(Permute, ChoicesOfAnotherTypeAreAnError) {
  EXPECT_THROW(sort_by_expert(at::zeros({4, 2}, at::kInt), 2), c10::Error);
  EXPECT_THROW(sort_by_expert(at::zeros({4}, at::kLong), 2), c10::Error);
}

}  // namespace
}  // namespace octavo::nn
