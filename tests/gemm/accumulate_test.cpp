// MatmulOptions::accumulate_into on the CPU and, where there is one, on a GPU.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "octavo/gemm/scaled_grouped_mm.h"
#include "octavo/gemm/scaled_mm.h"
#include "tests/error_of.h"
#include "tests/gemm/operands.h"

namespace octavo {
namespace {

using testing::random_operand;

struct AccumulatePair {
  Granularity a, b;
};
constexpr AccumulatePair kAccumulatePairs[] = {
    {kTensor, kTensor}, {kRow, kRow}, {k1x128, k1x128}, {kMx, kMx}};

ScaledTensor on(c10::Device device, ScaledTensor matrix) {
  matrix.data = matrix.data.to(device);
  matrix.scale = matrix.scale.to(device);
  return matrix;
}

class Accumulate : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (device().is_cuda() && !at::hasCUDA()) GTEST_SKIP() << "no GPU on this machine";
  }
  static c10::Device device() { return c10::Device(GetParam()); }
};

TEST_P(Accumulate, AddsTheProductToTheTensorAndReturnsIt) {
  // Sizes with and without padding, and none of something.
  constexpr std::int64_t kSizes[][3] = {{128, 256, 512}, {17, 33, 65}, {16, 32, 0}, {0, 32, 16}};
  for (const auto& pair : kAccumulatePairs) {
    for (const auto& [m, n, k] : kSizes) {
      for (at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
        const std::string what = to_string(pair.a) + " " + std::to_string(m);
        const ScaledTensor a = random_operand(m, k, Format::kE4M3FN, pair.a, 1);
        const ScaledTensor b = random_operand(n, k, Format::kE4M3FN, pair.b, 2);
        const at::Tensor before = at::randn({m, n}, dtype);
        const at::Tensor into = before.clone().to(device());
        const at::Tensor out = scaled_mm(on(device(), a), on(device(), b),
                                         {.out_dtype = dtype, .accumulate_into = into.alias()});
        EXPECT_EQ(out.const_data_ptr(), into.const_data_ptr()) << what;
        const at::Tensor product = scaled_mm(a, b, {.out_dtype = at::kFloat});
        const at::Tensor exact = product.to(at::kDouble) + before.to(at::kDouble);
        if (device()
                .is_cpu()) {  // autograd's own sum, bit for bit: the product rounded, then added
          EXPECT_TRUE(at::equal(out, before + product.to(dtype))) << what;
          continue;
        }
        // One rounding to bf16 is half of 2^-8 of the value, fp32 sums on tensor cores 2^-13 of the
        // terms; a product counted twice, as by measuring algorithms on it, is an error of one.
        const double error = (out.cpu().to(at::kDouble) - exact).norm().item<double>();
        EXPECT_TRUE(error <= (dtype == at::kFloat ? 1e-3 : 4e-3) * exact.norm().item<double>())
            << what << ": " << error << " of " << exact.norm().item<double>();
      }
    }
  }
}

TEST_P(Accumulate, OtherTensorsAreRefused) {
  const ScaledTensor a = on(device(), random_operand(16, 32, Format::kE4M3FN, kRow, 1));
  const ScaledTensor b = on(device(), random_operand(48, 32, Format::kE4M3FN, kRow, 2));
  const auto error = [&](const at::Tensor& into) {
    return testing::error_of(
        [&] { scaled_mm(a, b, {.out_dtype = at::kFloat, .accumulate_into = into}); });
  };
  const at::TensorOptions there(device());
  for (const at::Tensor& into :
       {at::zeros({16, 48}, there.dtype(at::kBFloat16)), at::zeros({48, 16}, there),
        at::zeros({48, 16}, there).t(), at::zeros({1, 48}, there).expand({16, 48})}) {
    EXPECT_NE(error(into).find("accumulate_into: expected a contiguous Float matrix 16 x 48"),
              std::string::npos)
        << error(into);
  }
}

// ------------------------------ by groups

struct GroupedGradient {
  ScaledTensor dy, x;
  at::Tensor offs;
};

// dy (40, n) and x (40, k) transposed, in three groups of which one is empty.
GroupedGradient grouped_gradient(std::int64_t n, std::int64_t k, const Granularity& granularity,
                                 c10::Device device) {
  const at::Tensor offs = at::tensor({17, 17, 40}, at::kInt);
  const OperandSpec spec{.rows = {}, .transposed = LayoutSpec{.granularity = granularity}};
  at::manual_seed(3);
  const GroupedOperand dy = quantize_grouped_operand(at::randn({40, n}), offs, spec);
  const GroupedOperand x = quantize_grouped_operand(at::randn({40, k}), offs, spec);
  return {on(device, dy.transposed), on(device, x.transposed), dy.offs_transposed.to(device)};
}

TEST_P(Accumulate, ByGroupsHasTheBitsOfAddingAfterwards) {
  for (const Granularity& granularity : {kRow, k1x128, kMx}) {
    // Without padding and with it.
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{64, 272}, {33, 40}}) {
      const GroupedGradient p = grouped_gradient(n, k, granularity, device());
      for (at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
        const at::Tensor alone = scaled_grouped_mm_k(p.dy, p.x, p.offs, {.out_dtype = dtype});
        const at::Tensor before = at::randn({3, n, k}, dtype).to(device());
        const at::Tensor into = before.clone();
        const at::Tensor out = scaled_grouped_mm_k(
            p.dy, p.x, p.offs, {.out_dtype = dtype, .accumulate_into = into.alias()});
        EXPECT_EQ(out.const_data_ptr(), into.const_data_ptr());
        EXPECT_TRUE(at::equal(out, before + alone)) << to_string(granularity) << " " << n << dtype;
        EXPECT_FALSE(at::equal(out, before));
      }
    }
  }
}

TEST_P(Accumulate, ByGroupsOtherTensorsAreRefused) {
  const GroupedGradient p = grouped_gradient(16, 48, kRow, device());
  for (const at::Tensor& into : {at::zeros({3, 16, 48}, at::kBFloat16),
                                 at::zeros({3, 48, 16}).transpose(1, 2), at::zeros({2, 16, 48})}) {
    const std::string error = testing::error_of([&] {
      scaled_grouped_mm_k(p.dy, p.x, p.offs,
                          {.out_dtype = at::kFloat, .accumulate_into = into.to(device())});
    });
    EXPECT_NE(error.find("accumulate_into: expected a contiguous Float tensor 3 x 16 x 48"),
              std::string::npos)
        << error;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Accumulate, ::testing::Values("cpu", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace octavo
