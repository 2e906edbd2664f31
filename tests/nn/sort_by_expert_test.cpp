#include "octavo/nn/sort_by_expert.h"

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

TEST(SortByExpert, SortsByExpertAndKeepsTheTokensOrder) {
  const at::Tensor experts = at::tensor({2, 0, 0, 3, 2, 0, 3, 0}, at::kLong).view({4, 2});
  const SortedTokens order = sort_by_expert(experts, 5);
  const auto list = [](const at::Tensor& t) {
    const at::Tensor whole = t.to(at::kLong).contiguous();
    return std::vector<std::int64_t>(whole.data_ptr<std::int64_t>(),
                                     whole.data_ptr<std::int64_t>() + whole.numel());
  };
  EXPECT_EQ(list(order.tokens_per_expert), (std::vector<std::int64_t>{4, 0, 2, 2, 0}));
  EXPECT_EQ(list(order.offs), (std::vector<std::int64_t>{4, 4, 6, 8, 8}));
  EXPECT_EQ(order.offs.scalar_type(), at::kInt);
  EXPECT_EQ(list(order.choice), (std::vector<std::int64_t>{1, 2, 5, 7, 0, 4, 3, 6}));
  EXPECT_EQ(list(order.row), (std::vector<std::int64_t>{4, 0, 1, 6, 5, 2, 7, 3}));
}

TEST(SortByExpert, RowsAndChoicesAreInverse) {
  torch::manual_seed(2);
  for (const std::int64_t tokens : {0, 1, 13}) {
    for (const std::int64_t copies : {1, 3}) {
      const at::Tensor experts = choices_of(tokens, copies, 4);
      const SortedTokens sorted = sort_by_expert(experts, 4);
      EXPECT_TRUE(at::equal(sorted.row.flatten().index_select(0, sorted.choice),
                            at::arange(tokens * copies, at::kLong)));
      const at::Tensor in_order = experts.flatten().index_select(0, sorted.choice);
      EXPECT_TRUE(at::equal(in_order, std::get<0>(experts.flatten().sort())));
      EXPECT_EQ(sorted.offs[3].item<std::int64_t>(), tokens * copies);
    }
  }
}

TEST(SortByExpert, ChoicesOfAnotherTypeAreAnError) {
  EXPECT_THROW(sort_by_expert(at::zeros({4, 2}, at::kInt), 2), c10::Error);
  EXPECT_THROW(sort_by_expert(at::zeros({4}, at::kLong), 2), c10::Error);
}

}  // namespace
}  // namespace octavo::nn
