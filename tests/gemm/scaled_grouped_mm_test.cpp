#include "octavo/gemm/scaled_grouped_mm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "octavo/gemm/scaled_mm.h"
#include "octavo/quantize/offsets.h"
#include "tests/error_of.h"
#include "tests/gemm/operands.h"

namespace octavo {
namespace {

using testing::error_of;

at::Tensor ends_of(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int32_t> ends;
  std::int64_t end = 0;
  for (const std::int64_t size : sizes) ends.push_back(static_cast<std::int32_t>(end += size));
  return at::tensor(ends, at::kInt);
}

std::int64_t total(const std::vector<std::int64_t>& sizes) {
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) sum += size;
  return sum;
}

// Freed blocks of every size full of NaN: what is not written is found out.
void poison_freed_blocks() {
  std::vector<at::Tensor> blocks;
  for (std::int64_t bytes = 64; bytes < 1 << 22; bytes *= 2) {
    for (int i = 0; i < 3; ++i) blocks.push_back(at::full({bytes}, 0xFF, at::kByte));
  }
}

double snr(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor exact = want.to(at::kDouble);
  const double noise = (got.to(at::kDouble) - exact).square().sum().item<double>();
  if (noise == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(exact.square().sum().item<double>() / noise);
}

bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
}

LayoutSpec layout(const Granularity& granularity, Format format = Format::kE4M3FN) {
  return {.format = format, .granularity = granularity};
}

// What one product of experts multiplies: x by rows with weights, dy and x by columns.
struct Family {
  Granularity rows, weights;
};
const Family kFamilies[] = {{kRow, kRow}, {kRow, kTensor}, {k1x128, k128x128}, {kMx, kMx}};
const Granularity kColumnFamilies[] = {kRow, k1x128, kMx};

const std::vector<std::vector<std::int64_t>> kGroupings = {
    {162, 0, 257, 46, 0, 83}, {0, 0, 0, 0}, {16, 16, 0}, {0, 32}, {0, 0, 16}, {44, 0, 20}, {1},
    {3, 200, 1, 1, 5, 64}};

ScaledTensor rows_alone(const at::Tensor& x, const Granularity& granularity) {
  return quantize_operand(x, {.rows = layout(granularity)}).rows;
}

TEST(ScaledGroupedMm, ReferenceEqualsALoopOverExpertsBitForBit) {
  at::manual_seed(1);
  for (const auto& sizes : kGroupings) {
    const auto experts = static_cast<std::int64_t>(sizes.size());
    const std::int64_t m = total(sizes), past = 5;
    for (const auto& [n, k] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{48, 160}, {15, 33}, {130, 256}}) {
      at::Tensor x = at::randn({m + past, k}), w = at::randn({experts, n, k});
      x.narrow(0, m, past).fill_(std::nan(""));
      for (const auto& [rows, weights] : kFamilies) {
        for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
          SCOPED_TRACE(to_string(rows) + " " + std::to_string(n) + " " + std::to_string(sizes[0]));
          const GroupedOperand a =
              quantize_grouped_operand(x, ends_of(sizes), {.rows = layout(rows)});
          const ScaledTensor b = quantize_expert_weights(w, {.rows = layout(weights)}).rows;
          poison_freed_blocks();
          const at::Tensor out = scaled_grouped_mm(a.rows, b, a.offs, {.out_dtype = dtype});
          EXPECT_EQ(out.sizes(), at::IntArrayRef({m + past, n}));
          std::int64_t begin = 0;
          for (std::int64_t e = 0; e < experts; ++e) {
            const std::int64_t size = sizes[static_cast<std::size_t>(e)];
            const at::Tensor want = scaled_mm(
                rows_alone(x.narrow(0, begin, size), rows),
                quantize_operand(w[e], {.rows = layout(weights)}).rows, {.out_dtype = dtype});
            EXPECT_TRUE(equal_bits(out.narrow(0, begin, size), want));
            begin += size;
          }
          EXPECT_FALSE(out.narrow(0, m, past).view(at::kByte).any().item<bool>());
        }
      }
    }
  }
}

TEST(ScaledGroupedMm, WeightGradientsOfEveryGroup) {
  at::manual_seed(2);
  for (const auto& sizes : kGroupings) {
    const auto experts = static_cast<std::int64_t>(sizes.size());
    const std::int64_t m = total(sizes), past = 5;
    for (const auto& [n, k] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{48, 160}, {15, 33}, {768, 16}}) {
      const at::Tensor x = at::randn({m + past, k}), dy = at::randn({m + past, n});
      for (const Granularity& granularity : kColumnFamilies) {
        SCOPED_TRACE(to_string(granularity) + " " + std::to_string(n) + " " +
                     std::to_string(sizes[0]));
        const OperandSpec spec{.transposed = layout(granularity)};
        const GroupedOperand a = quantize_grouped_operand(dy, ends_of(sizes), spec);
        const GroupedOperand b = quantize_grouped_operand(x, ends_of(sizes), spec);
        poison_freed_blocks();
        const at::Tensor out = scaled_grouped_mm_k(a.transposed, b.transposed, a.offs_transposed,
                                                   {.out_dtype = at::kFloat});
        EXPECT_EQ(out.sizes(), at::IntArrayRef({experts, n, k}));
        std::int64_t begin = 0;
        for (std::int64_t e = 0; e < experts; ++e) {
          const std::int64_t size = sizes[static_cast<std::size_t>(e)];
          if (size == 0) {
            EXPECT_FALSE(out[e].view(at::kByte).any().item<bool>());
            continue;
          }
          // The same rows followed by zeros up to the alignment: the same bits.
          const std::int64_t aligned =
              groups_of(a.offs_transposed, 1)[static_cast<std::size_t>(e)].size();
          const auto padded = [&](const at::Tensor& t) {
            at::Tensor zeros = at::zeros({aligned, t.size(1)});
            zeros.narrow(0, 0, size).copy_(t.narrow(0, begin, size));
            return quantize_operand(zeros, spec).transposed;
          };
          EXPECT_TRUE(
              equal_bits(out[e], scaled_mm(padded(dy), padded(x), {.out_dtype = at::kFloat})));
          // And the group by itself: the same products, summed in another order.
          const at::Tensor alone =
              scaled_mm(quantize_operand(dy.narrow(0, begin, size), spec).transposed,
                        quantize_operand(x.narrow(0, begin, size), spec).transposed,
                        {.out_dtype = at::kFloat});
          EXPECT_TRUE(snr(out[e], alone) >= 120) << snr(out[e], alone);
          begin += size;
        }
      }
    }
  }
}

// bf16 results: 54 dB is its rounding, twice where scales are applied to a rounded product.
TEST(ScaledGroupedMm, EmulationAgreesWithTheReference) {
  at::manual_seed(3);
  for (const auto& sizes : kGroupings) {
    if (total(sizes) == 0) continue;
    const auto experts = static_cast<std::int64_t>(sizes.size());
    const std::int64_t m = total(sizes), past = 7, n = 42, k = 150;
    // Experts and rows of unlike sizes, so that a scale of another group shows.
    const at::Tensor x = at::randn({m + past, k}) * at::exp(at::randn({m + past, 1}));
    const at::Tensor dy = at::randn({m + past, n}) * at::exp(at::randn({m + past, 1}));
    const at::Tensor w = at::randn({experts, n, k}) * at::exp(at::randn({experts, 1, 1}));
    const auto check = [&](const at::Tensor& got, const at::Tensor& want) {
      EXPECT_EQ(got.scalar_type(), want.scalar_type());
      EXPECT_TRUE(snr(got, want) >= 48) << snr(got, want);
    };
    for (const auto& [rows, weights] : kFamilies) {
      SCOPED_TRACE(to_string(rows) + " " + to_string(weights));
      const GroupedOperand a = quantize_grouped_operand(x, ends_of(sizes), {.rows = layout(rows)});
      const ScaledTensor b = quantize_expert_weights(w, {.rows = layout(weights)}).rows;
      poison_freed_blocks();
      const at::Tensor got = scaled_grouped_mm(a.rows, b, a.offs, {.backend = Backend::kEmulated});
      check(got, scaled_grouped_mm(a.rows, b, a.offs, {}));
      EXPECT_FALSE(got.narrow(0, m, past).view(at::kByte).any().item<bool>());
    }
    for (const Granularity& granularity : kColumnFamilies) {
      SCOPED_TRACE(to_string(granularity));
      const OperandSpec spec{.transposed = layout(granularity)};
      const GroupedOperand a = quantize_grouped_operand(dy, ends_of(sizes), spec);
      const GroupedOperand b = quantize_grouped_operand(x, ends_of(sizes), spec);
      const auto with = [&](Backend backend) {
        return scaled_grouped_mm_k(a.transposed, b.transposed, a.offs_transposed,
                                   {.out_dtype = at::kFloat, .backend = backend});
      };
      const at::Tensor got = with(Backend::kEmulated);
      check(got, with(Backend::kReference));
      for (std::int64_t e = 0; e < experts; ++e) {
        if (sizes[static_cast<std::size_t>(e)] > 0) continue;
        EXPECT_FALSE(got[e].view(at::kByte).any().item<bool>());
      }
    }
  }
}

TEST(ScaledGroupedMm, HighPrecisionWeightGradients) {
  at::manual_seed(4);
  for (const auto& sizes : kGroupings) {
    const std::int64_t m = total(sizes), past = 3;
    at::Tensor x = at::randn({m + past, 24}), dy = at::randn({m + past, 40});
    x.narrow(0, m, past).fill_(std::nan(""));
    poison_freed_blocks();
    const at::Tensor got = grouped_mm_k(dy, x, ends_of(sizes), at::kFloat);
    std::int64_t begin = 0, e = 0;
    for (const std::int64_t size : sizes) {
      const at::Tensor want = at::mm(dy.narrow(0, begin, size).t(), x.narrow(0, begin, size));
      EXPECT_TRUE(equal_bits(got[e++], want));
      begin += size;
    }
  }
  EXPECT_EQ(grouped_mm_k(at::randn({4, 8}).to(at::kBFloat16), at::randn({4, 8}).to(at::kBFloat16),
                         ends_of({4}), at::kFloat)
                .scalar_type(),
            at::kFloat);
}

// field_cases: "one token with N=24576, K=1536; fewer than 64 rows in a group; [...] 64, 128 and
// 256 groups".
TEST(ScaledGroupedMm, ShapesThatBrokeKernels) {
  at::manual_seed(5);
  const at::Tensor x = at::randn({1, 1536}), w = at::randn({1, 24576, 1536});
  const GroupedOperand a = quantize_grouped_operand(x, ends_of({1}), {.rows = layout(kRow)});
  const ScaledTensor b = quantize_expert_weights(w, {.rows = layout(kRow)}).rows;
  const at::Tensor out = scaled_grouped_mm(a.rows, b, a.offs, {.out_dtype = at::kFloat});
  EXPECT_TRUE(snr(out, at::mm(dequantize(a.rows), dequantize(b)[0].t())) >= 100);
  for (const std::int64_t experts : {64, 128, 256}) {
    std::vector<std::int64_t> sizes;
    for (std::int64_t e = 0; e < experts; ++e) sizes.push_back(e % 5 == 0 ? 0 : e % 7);
    const at::Tensor many = at::randn({total(sizes), 32}), weights = at::randn({experts, 16, 32});
    const GroupedOperand left =
        quantize_grouped_operand(many, ends_of(sizes), {.rows = layout(kMx)});
    const ScaledTensor right = quantize_expert_weights(weights, {.rows = layout(kMx)}).rows;
    const at::Tensor got =
        scaled_grouped_mm(left.rows, right, left.offs, {.out_dtype = at::kFloat});
    const at::Tensor rows = dequantize(left.rows), all = dequantize(right);
    std::int64_t begin = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int64_t size = sizes[static_cast<std::size_t>(e)];
      EXPECT_TRUE(
          snr(got.narrow(0, begin, size), at::mm(rows.narrow(0, begin, size), all[e].t())) >= 100);
      begin += size;
    }
  }
}

TEST(ScaledGroupedMm, EmptySizes) {
  for (const auto& [m, n, k] :
       std::vector<std::array<std::int64_t, 3>>{{0, 16, 32}, {8, 0, 32}, {8, 16, 0}, {0, 0, 0}}) {
    const at::Tensor ends = ends_of({m, 0});
    const OperandSpec spec{.rows = layout(kRow), .transposed = layout(kRow)};
    const GroupedOperand x = quantize_grouped_operand(at::randn({m, k}), ends, spec);
    const GroupedOperand dy = quantize_grouped_operand(at::randn({m, n}), ends, spec);
    const ScaledTensor w =
        quantize_expert_weights(at::randn({2, n, k}), {.rows = layout(kRow)}).rows;
    for (const Backend backend : {Backend::kAuto, Backend::kEmulated}) {
      EXPECT_TRUE(equal_bits(
          scaled_grouped_mm(x.rows, w, ends, {.out_dtype = at::kFloat, .backend = backend}),
          at::zeros({m, n})));
      EXPECT_TRUE(equal_bits(scaled_grouped_mm_k(dy.transposed, x.transposed, dy.offs_transposed,
                                                 {.out_dtype = at::kFloat, .backend = backend}),
                             at::zeros({2, n, k})));
    }
  }
}

TEST(ScaledGroupedMm, ErrorsNameTheArgumentAndTheRepair) {
  const at::Tensor ends = ends_of({8, 24});
  const auto rows = [&](const Granularity& g, Format format = Format::kE4M3FN) {
    return quantize_grouped_operand(at::randn({32, 128}), ends, {.rows = layout(g, format)}).rows;
  };
  const auto columns = [&](const Granularity& g) {
    return quantize_grouped_operand(at::randn({32, 128}), ends, {.transposed = layout(g)});
  };
  const auto weights = [&](const Granularity& g, Format format = Format::kE4M3FN) {
    return quantize_expert_weights(at::randn({2, 16, 128}), {.rows = layout(g, format)}).rows;
  };
  const auto expect = [](auto&& call, const std::vector<std::string>& parts) {
    const std::string message = error_of(call);
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
    }
  };
  expect([&] { scaled_grouped_mm(rows(kRow), weights(kRow), ends.to(at::kLong), {}); },
         {"offs", "int32", "Long"});
  expect([&] { scaled_grouped_mm(rows(kRow), weights(kRow), ends_of({32}), {}); },
         {"offs", "each of 2 groups"});
  expect(
      [&] {
        scaled_grouped_mm(rows(kRow), weights(kRow), ends_of({8, 25}), {});
      },
      {"offs", "32 rows", "33"});
  expect([&] { scaled_grouped_mm(rows(kRow), weights(k128x128), ends, {}); },
         {"a and b", "1x128 with 128x128", "rowwise and 128x128"});
  expect([&] { scaled_grouped_mm(rows(kRow), rows(kRow), ends, {}); },
         {"b", "experts' weights", "quantize_expert_weights()"});
  expect(
      [&] { scaled_grouped_mm(rows(kRow, Format::kE5M2), weights(kRow, Format::kE5M2), ends, {}); },
      {"at least one e4m3"});
  expect([&] { scaled_grouped_mm(rows(kRow, Format::kE4M3FNUZ), weights(kRow), ends, {}); },
         {"one flavour"});
  expect([&] { scaled_grouped_mm(rows(kRow), weights(kRow), ends, {.out_dtype = at::kDouble}); },
         {"out_dtype", "Double"});
  expect([&] { scaled_grouped_mm(rows(kRow), weights(kRow), ends, {.backend = Backend::kAten}); },
         {"backend", "reference on the CPU", "aten"});
  const GroupedOperand a = columns(kRow);
  expect([&] { scaled_grouped_mm_k(a.transposed, columns(kMx).transposed, a.offs_transposed, {}); },
         {"a and b"});
  expect([&] { scaled_grouped_mm_k(a.transposed, a.transposed, ends, {}); },
         {"offs_transposed", "multiples of 16", "got 8"});
  expect([&] { scaled_grouped_mm_k(a.transposed, a.transposed, ends_of({32}), {}); },
         {"a.scale", "E = 1"});
  expect(
      [&] {
        grouped_mm_k(at::randn({3, 4}), at::randn({4, 4}), ends_of({3}), at::kFloat);
      },
      {"dy and x"});
}

}  // namespace
}  // namespace octavo
