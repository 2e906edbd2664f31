#include "octavo/gemm/high_precision_mm.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <vector>

namespace octavo {
namespace {

// (rows, columns) with contiguous columns, or contiguous rows.
at::Tensor matrix(std::int64_t rows, std::int64_t columns, bool across, at::TensorOptions options) {
  const at::Tensor x = at::randn(
      across ? at::IntArrayRef({columns, rows}) : at::IntArrayRef({rows, columns}), options);
  return across ? x.t() : x;
}

TEST(HighPrecisionMm, IsLibTorchsProductOnTheCpu) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
             {1, 1, 1}, {3, 5, 7}, {64, 32, 16}, {5, 3, 0}, {0, 3, 4}, {3, 0, 4}}) {
      for (const bool a_across : {false, true}) {
        for (const bool b_across : {false, true}) {
          const at::Tensor a = matrix(m, k, a_across, dtype), b = matrix(n, k, b_across, dtype);
          const at::Tensor y = at::mm(a, b.t());
          EXPECT_TRUE(high_precision_mm(a, b).equal(y)) << m << ' ' << n << ' ' << k;
          const at::Tensor into = at::full({m, n}, 3, dtype);
          EXPECT_TRUE(high_precision_mm(a, b, {.into = into}).is_same(into));
          EXPECT_TRUE(into.equal(y));
          const at::Tensor sum = at::full({m, n}, 3, dtype);
          EXPECT_TRUE(high_precision_mm(a, b, {.into = sum, .adds = true}).is_same(sum));
          EXPECT_TRUE(sum.equal(at::addmm(at::full({m, n}, 3, dtype), a, b.t())));
        }
      }
    }
  }
}

TEST(HighPrecisionMm, SizesThatDoNotGoTogetherAreLibTorchsError) {
  EXPECT_THROW(high_precision_mm(at::ones({2, 3}), at::ones({2, 4})), c10::Error);
}

// Large enough for cuBLASLt's algorithms to be chosen, by each of the ways operands can lie; then
// what it leaves to LibTorch: rows that are not 16-byte aligned.
TEST(HighPrecisionMm, IsTheProductOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  at::manual_seed(1);
  constexpr std::int64_t kM = 2048, kN = 8200, kK = 8192;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(dtype);
    for (const std::int64_t n : {kN, kN + 1}) {
      for (const bool a_across : {false, true}) {
        for (const bool b_across : {false, true}) {
          const at::Tensor a = matrix(kM, kK, a_across, options),
                           b = matrix(n, kK, b_across, options);
          const at::Tensor exact = at::mm(a.to(at::kFloat), b.t().to(at::kFloat));
          // Sums are below 1024, where half a unit in the last place is 0.25 in fp16 and 2 in bf16;
          // a product may round twice (splits of K), and fp32 sums differ by a thousandth of that.
          const double bound = 2 * 1.01 * (dtype == at::kHalf ? 0.25 : 2.0);
          const auto differs = [&](const at::Tensor& y, const at::Tensor& from) {
            return (y.to(at::kFloat) - from).abs().max().item<double>();
          };
          const at::Tensor y = high_precision_mm(a, b);
          EXPECT_LT(differs(y, exact), bound) << n << a_across << b_across;
          const at::Tensor sum = at::full({kM, n}, 100, options);
          high_precision_mm(a, b, {.into = sum, .adds = true});
          EXPECT_LT(differs(sum, exact + 100), bound) << n << a_across << b_across;
          // The same algorithm each time.
          EXPECT_TRUE(high_precision_mm(a, b).equal(y));
        }
      }
    }
  }
}

}  // namespace
}  // namespace octavo
