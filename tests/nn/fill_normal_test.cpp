#include "octavo/nn/fill_normal.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "tests/error_of.h"

namespace octavo::nn {
namespace {

at::Tensor filled(at::ScalarType dtype, std::uint64_t seed, const char* name) {
  const at::Tensor x = torch::empty({123, 457}, dtype);
  fill_normal(x, 0.5, seed, name);
  return x;
}

TEST(FillNormal, DoesNotDependOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = filled(at::kFloat, 1, "a");
  at::set_num_threads(3);
  EXPECT_TRUE(torch::equal(filled(at::kFloat, 1, "a"), one));
  at::set_num_threads(threads);
}

TEST(FillNormal, DependsOnSeedAndName) {
  const at::Tensor x = filled(at::kFloat, 1, "a");
  EXPECT_NEAR(x.std().item<float>(), 0.5, 0.01);
  for (const at::Tensor& other : {filled(at::kFloat, 2, "a"), filled(at::kFloat, 1, "b")}) {
    EXPECT_LT((x == other).sum().item<std::int64_t>(), 10);
    EXPECT_NEAR((x * other).mean().item<float>(), 0.0, 0.01);
  }
}

TEST(FillNormal, OtherDtypesAreItsRoundings) {
  const at::Tensor x = filled(at::kFloat, 7, "w");
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
    EXPECT_TRUE(torch::equal(filled(dtype, 7, "w"), x.to(dtype))) << dtype;
  }
}

TEST(FillNormal, LeavesNothingToDoAloneAndRefusesGaps) {
  fill_normal(torch::empty({0, 4}), 1.0, 1, "empty");
  fill_normal(torch::empty({4, 4}, at::kMeta), 1.0, 1, "meta");
  const at::Tensor x = torch::zeros({4, 6}).t();
  const std::string error = testing::error_of([&] { fill_normal(x, 1.0, 1, "w"); });
  EXPECT_NE(error.find("w: expected a contiguous tensor"), error.npos) << error;
}

}  // namespace
}  // namespace octavo::nn
