#include "octavo/quantize/quantize.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "octavo/kernels/counter.h"
#include "octavo/kernels/cpu/targets.h"
#include "tests/error_of.h"
#include "tests/quantize/layout_reference.h"

namespace octavo {
namespace {

using testing::error_of;

constexpr Granularity kGranularities[] = {
    Granularity::tensorwise(),  Granularity::rowwise(),     Granularity::colwise(),
    Granularity::block_1x128(), Granularity::block_128x1(), Granularity::block_128x128(),
    Granularity::mx_1x32(),
};
constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

// Normal values whose rows and columns differ in size by powers of two, with zeros of both signs.
at::Tensor operand(std::int64_t rows, std::int64_t columns, at::ScalarType dtype, int seed = 1) {
  at::manual_seed(static_cast<std::uint64_t>(seed));
  at::Tensor x = at::randn({rows, columns});
  x = x * at::randint(-6, 7, {rows, 1}).exp2() * at::randint(-3, 4, {1, columns}).exp2();
  x.masked_fill_(at::rand({rows, columns}) < 0.02, -0.0);
  return x.to(dtype);
}

// Formats and roundings in turn, so that a grid over sizes visits all of them.
LayoutSpec spec_of(const Granularity& granularity, int turn) {
  LayoutSpec spec{.granularity = granularity};
  spec.format =
      granularity.mx ? (turn % 2 ? Format::kE5M2 : Format::kE4M3FN) : kAllFormats[turn % 4];
  spec.scale_rounding = turn / 4 % 2 ? ScaleRounding::kPowerOfTwo : ScaleRounding::kNone;
  spec.mx_rounding = static_cast<MxRounding>(turn / 2 % 4);
  return spec;
}

// Every pair of granularities of x, and every single layout, on every target.
void expect_all_pairs(const at::Tensor& x, int turn) {
  const reference::Values upright = reference::values_of(x);
  const reference::Values turned = reference::transpose(upright);
  const std::int64_t m = x.size(0), k = x.size(1);
  std::vector<LayoutSpec> specs[2];
  std::vector<reference::Layout> wanted[2];
  for (const Granularity& g : kGranularities) {
    specs[0].push_back(spec_of(g, turn));
    // The same format and rounding in half of the cases: then equal blocks give equal bytes.
    specs[1].push_back(spec_of(g, turn % 3 ? turn : turn + 1));
    wanted[0].push_back(reference::quantize_layout(upright, specs[0].back()));
    wanted[1].push_back(reference::quantize_layout(turned, specs[1].back()));
  }
  const std::size_t n = std::size(kGranularities);
  for (std::int64_t cpu : kernels::cpu_targets()) {
    kernels::use_cpu_target(cpu);
    for (std::size_t i = 0; i <= n; ++i) {
      for (std::size_t j = 0; j <= n; ++j) {
        OperandSpec spec;
        if (i < n) spec.rows = specs[0][i];
        if (j < n) spec.transposed = specs[1][j];
        if (!spec.rows && !spec.transposed) continue;
        const QuantizedOperand q = quantize_operand(x, spec);
        const std::string with =
            kernels::cpu_target_name(cpu) + " " + c10::toString(x.scalar_type()) + " with rows " +
            (i < n ? to_string(kGranularities[i]) : "absent") + " and transposed " +
            (j < n ? to_string(kGranularities[j]) : "absent");
        EXPECT_EQ(q.rows.defined(), i < n) << with;
        EXPECT_EQ(q.transposed.defined(), j < n) << with;
        if (i < n) {
          ASSERT_TRUE(reference::is_layout(q.rows, specs[0][i], wanted[0][i], m, k)) << with;
        }
        if (j < n) {
          ASSERT_TRUE(reference::is_layout(q.transposed, specs[1][j], wanted[1][j], k, m)) << with;
        }
      }
    }
  }
  kernels::use_cpu_target(0);
}

TEST(Quantize, EveryPairAndAwkwardSizes) {
  int turn = 0;
  for (std::int64_t rows : {0, 1, 7, 31, 32, 33, 127, 128, 129, 300}) {
    for (std::int64_t columns : {0, 1, 7, 31, 32, 33, 127, 128, 129, 300}) {
      const at::ScalarType dtype = kTypes[turn % 3];
      expect_all_pairs(operand(rows, columns, dtype, turn), turn);
      if (HasFatalFailure()) return;
      turn += 5;  // prime to 3, 4 and 8: types, formats and roundings mix
    }
  }
}

TEST(Quantize, EveryFormatRoundingAndType) {
  for (at::ScalarType dtype : kTypes) {
    for (int turn = 0; turn < 8; ++turn) {
      expect_all_pairs(operand(70, 150, dtype, turn), turn);
      if (HasFatalFailure()) return;
    }
  }
}

// One matrix in every way it can lie in memory.
TEST(Quantize, AnyStrides) {
  int turn = 0;
  for (at::ScalarType dtype : kTypes) {
    for (const auto& [m, k] :
         {std::pair{33, 70}, std::pair{130, 129}, std::pair{1, 40}, std::pair{40, 1}}) {
      const at::Tensor plain = operand(m, k, dtype);
      const at::Tensor views[] = {
          operand(k, m, dtype).t(),                      // a transposed view
          operand(m, k + 9, dtype).narrow(1, 5, k),      // a column slice
          operand(k + 9, m, dtype).narrow(0, 5, k).t(),  // a transposed slice
          operand(1, m * k + 1, dtype).flatten().narrow(0, 1, m * k).view({m, k}),  // misaligned
          operand(1, k, dtype).expand({m, k}),             // one row, stride 0
          operand(m, 1, dtype).expand({m, k}),             // one column, stride 0
          operand(1, 1, dtype).expand({m, k}),             // a sum's gradient
          operand(m, 2 * k, dtype).slice(1, 0, 2 * k, 2),  // every other column
          operand(2 * m, k * 3, dtype).slice(0, 0, 2 * m, 2).slice(1, 1, 3 * k, 3),
      };
      for (const at::Tensor& view : views) {
        ASSERT_EQ(view.sizes(), plain.sizes());
        expect_all_pairs(view, turn++);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Quantize, NaNAndInfInEveryKindOfPlace) {
  const float infinity = std::numeric_limits<float>::infinity();
  int turn = 0;
  for (float bad : {std::numeric_limits<float>::quiet_NaN(),
                    -std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    for (const auto& [r, c] : {std::pair{0, 0}, std::pair{31, 32}, std::pair{64, 127},
                               std::pair{127, 128}, std::pair{128, 5}, std::pair{129, 139}}) {
      at::Tensor x = operand(130, 140, kTypes[turn % 3], turn);
      x[r][c] = bad;
      expect_all_pairs(x, turn);
      if (HasFatalFailure()) return;
      turn += 5;
    }
  }
  // More than one, of both kinds, in one row and one column.
  at::Tensor x = operand(40, 170, at::kFloat);
  x[3][10] = infinity;
  x[3][11] = std::numeric_limits<float>::quiet_NaN();
  x[17][10] = -infinity;
  x[18].zero_();
  for (int t = 0; t < 8; ++t) expect_all_pairs(x, t);
}

TEST(Quantize, TinyHugeAndZeroBlocks) {
  for (at::ScalarType dtype : kTypes) {
    for (int t = 0; t < 8; ++t) {
      at::Tensor x = operand(40, 140, at::kFloat, t);
      x[0].zero_();
      x[1].fill_(-0.0);
      x[2] *= 1e-36;
      x[3] = x[3].sign() * 1e-45;  // the smallest fp32 subnormal
      x[4] = x[4].sign() * std::numeric_limits<float>::max();
      x[5] *= 1e-12;
      x[6] = x[6].sign() * 1e-12;
      x[7] *= 1e30;
      x[8].fill_(65504.0);
      x = dtype == at::kHalf ? x.clamp(-65504.0, 65504.0).to(dtype) : x.to(dtype);
      expect_all_pairs(x, t);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Quantize, AnyNumberOfThreadsGivesTheSameBytes) {
  const int threads = at::get_num_threads();
  const at::Tensor x = operand(300, 260, at::kBFloat16);  // more than two tasks
  for (const Granularity& rows : kGranularities) {
    for (const Granularity& transposed : kGranularities) {
      const OperandSpec spec{.rows = spec_of(rows, 0), .transposed = spec_of(transposed, 0)};
      at::set_num_threads(1);
      const QuantizedOperand one = quantize_operand(x, spec);
      for (int n : {2, 3}) {
        at::set_num_threads(n);
        const QuantizedOperand more = quantize_operand(x, spec);
        for (const auto& [a, b] :
             {std::pair{one.rows, more.rows}, std::pair{one.transposed, more.transposed}}) {
          EXPECT_TRUE(at::equal(a.data.view(at::kByte), b.data.view(at::kByte)));
          const at::ScalarType bits = a.granularity.mx ? at::kByte : at::kInt;
          EXPECT_TRUE(at::equal(a.scale.view(bits), b.scale.view(bits)));
        }
      }
    }
  }
  at::set_num_threads(threads);
}

// (amax, quantize) passes of one call.
std::pair<std::uint64_t, std::uint64_t> passes(const at::Tensor& x, const OperandSpec& spec) {
  const std::uint64_t amax = kernels::counters().amax, quantize = kernels::counters().quantize;
  quantize_operand(x, spec);
  return {kernels::counters().amax - amax, kernels::counters().quantize - quantize};
}

TEST(Quantize, PassesOverX) {
  const at::Tensor x = operand(600, 500, at::kFloat);  // several tasks on two threads
  const auto layout = [](Granularity g) { return LayoutSpec{.granularity = g}; };
  const auto counts = [](std::uint64_t amax, std::uint64_t quantize) {
    return std::pair{amax, quantize};
  };
  const auto tensorwise = layout(Granularity::tensorwise()),
             rowwise = layout(Granularity::rowwise());
  EXPECT_EQ(passes(x, {.rows = rowwise}), counts(0, 1));  // amax while the row is in cache
  EXPECT_EQ(passes(x, {.transposed = rowwise}), counts(1, 1));
  EXPECT_EQ(passes(x.t(), {.transposed = rowwise}), counts(0, 1));  // roles exchanged
  EXPECT_EQ(passes(x, {.rows = rowwise, .transposed = rowwise}), counts(1, 1));
  EXPECT_EQ(passes(x, {.rows = tensorwise}), counts(1, 1));
  EXPECT_EQ(passes(x, {.rows = tensorwise, .transposed = tensorwise}), counts(1, 1));
  EXPECT_EQ(passes(x, {.rows = rowwise, .transposed = tensorwise}), counts(1, 1));
  for (const Granularity& g : {Granularity::block_1x128(), Granularity::block_128x1(),
                               Granularity::block_128x128(), Granularity::mx_1x32()}) {
    EXPECT_EQ(passes(x, {.rows = layout(g)}), counts(0, 1));
    EXPECT_EQ(passes(x, {.rows = layout(g), .transposed = layout(g)}), counts(0, 1));
    EXPECT_EQ(passes(x, {.rows = rowwise, .transposed = layout(g)}), counts(1, 1));
  }
  EXPECT_EQ(passes(x.narrow(0, 0, 0), {.rows = tensorwise}), counts(0, 0));
  const at::Tensor amax = x.abs().max();  // known: no pass for it, where no line's is wanted
  EXPECT_EQ(passes(x, {.transposed = tensorwise, .amax = {.tensor = amax}}), counts(0, 1));
  const OperandSpec whole{.rows = tensorwise, .transposed = tensorwise, .amax = {.tensor = amax}};
  EXPECT_EQ(passes(x, whole), counts(0, 1));
  OperandSpec mixed{.rows = rowwise, .transposed = tensorwise, .amax = {.tensor = amax}};
  EXPECT_EQ(passes(x, mixed), counts(1, 1));
  mixed.amax.rows = x.abs().amax(1);
  EXPECT_EQ(passes(x, mixed), counts(0, 1));
}

TEST(Quantize, AKnownAmaxChangesNoBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = operand(65, 130, dtype);
    for (const at::Tensor& view : {x, x.t(), x.narrow(1, 3, 100)}) {
      for (const ScaleRounding rounding : {ScaleRounding::kNone, ScaleRounding::kPowerOfTwo}) {
        OperandSpec spec;
        spec.rows = spec.transposed =
            LayoutSpec{.granularity = Granularity::tensorwise(), .scale_rounding = rounding};
        const QuantizedOperand want = quantize_operand(view, spec);
        spec.amax.tensor = view.abs().max().to(at::kFloat);
        const QuantizedOperand got = quantize_operand(view, spec);
        for (const auto& [a, b] :
             {std::pair{got.rows, want.rows}, std::pair{got.transposed, want.transposed}}) {
          EXPECT_TRUE(at::equal(a.data.view(at::kByte), b.data.view(at::kByte)));
          EXPECT_TRUE(at::equal(a.scale, b.scale));
        }
      }
    }
  }
}

TEST(Quantize, FoundAmaxesAreThoseOfOnePass) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = operand(65, 130, dtype);
    for (const at::Tensor& view : {x, x.t(), x.narrow(1, 3, 100), x.narrow(0, 0, 0)}) {
      const auto tensorwise = Granularity::tensorwise(), rowwise = Granularity::rowwise(),
                 colwise = Granularity::colwise();
      const std::uint64_t before = kernels::counters().amax;
      const at::Tensor all = find_amaxes(view, {colwise, tensorwise, rowwise});
      EXPECT_EQ(kernels::counters().amax - before, view.numel() > 0 ? 1u : 0u);
      const at::Tensor x32 = view.abs().to(at::kFloat);
      const std::int64_t m = view.size(0), k = view.size(1);
      ASSERT_EQ(all.sizes(), at::IntArrayRef({k + 1 + m}));
      if (view.numel() == 0) {
        EXPECT_TRUE(at::equal(all, at::zeros({k + 1})));
        continue;
      }
      EXPECT_TRUE(at::equal(all.narrow(0, 0, k), x32.amax(0)));
      EXPECT_TRUE(at::equal(all.narrow(0, k, 1), x32.max().view({1})));
      EXPECT_TRUE(at::equal(all.narrow(0, k + 1, m), x32.amax(1)));
      // Every layout that follows from them.
      for (const Granularity& g : {tensorwise, rowwise, colwise}) {
        OperandSpec spec{.rows = LayoutSpec{.granularity = g},
                         .transposed = LayoutSpec{.granularity = g}};
        const QuantizedOperand want = quantize_operand(view, spec);
        spec.amax = {.tensor = all.narrow(0, k, 1),
                     .rows = all.narrow(0, k + 1, m),
                     .columns = all.narrow(0, 0, k)};
        const QuantizedOperand got = quantize_operand(view, spec);
        for (const auto& [a, b] :
             {std::pair{got.rows, want.rows}, std::pair{got.transposed, want.transposed}}) {
          EXPECT_TRUE(at::equal(a.data.view(at::kByte), b.data.view(at::kByte)));
          EXPECT_TRUE(at::equal(a.scale, b.scale));
        }
        EXPECT_EQ(passes(view, {.rows = spec.rows, .amax = spec.amax}).first, 0u);
        EXPECT_EQ(passes(view, {.transposed = spec.rows, .amax = spec.amax}).first, 0u);
      }
    }
  }
}

TEST(Quantize, Errors) {
  const OperandSpec rowwise{.rows = LayoutSpec{}};
  const auto expect = [](const std::string& message, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' in '" << message << "'";
    }
  };
  expect(error_of([&] {
           quantize_operand(at::zeros({2, 3, 4}), rowwise);
         }),
         {"x: expected a matrix", "3 dimensions", "reshape"});
  expect(error_of([&] {
           quantize_operand(at::zeros({2, 3}, at::kDouble), rowwise);
         }),
         {"x: expected float32, bfloat16 or float16", "Double", "to("});
  expect(error_of([&] {
           quantize_operand(at::zeros({2, 3}), {});
         }),
         {"spec: expected at least one layout"});
  for (const at::Tensor& amax : {at::zeros({2}), at::zeros({}, at::kDouble)}) {
    expect(error_of([&] {
             quantize_operand(at::zeros({2, 3}), {.rows = LayoutSpec{}, .amax = {.tensor = amax}});
           }),
           {"spec.amax.tensor: expected 1 float32 numbers", "on cpu", "leave it undefined"});
  }
  expect(error_of([&] {
           quantize_operand(at::zeros({2, 3}, at::TensorOptions().device(at::kMeta)), rowwise);
         }),
         {"x: expected a CPU or CUDA tensor", "meta"});
  for (Format format : {Format::kE4M3FNUZ, Format::kE5M2FNUZ}) {
    const LayoutSpec mx{.format = format, .granularity = Granularity::mx_1x32()};
    expect(error_of([&] {
             quantize_operand(at::zeros({2, 3}), {.rows = mx});
           }),
           {"spec.rows.format", std::string(name(format)), "rowwise"});
    expect(error_of([&] {
             quantize_operand(at::zeros({2, 3}), {.transposed = mx});
           }),
           {"spec.transposed.format"});
  }
  const LayoutSpec odd{.granularity = {3, 5}};
  expect(error_of([&] {
           quantize_operand(at::zeros({2, 3}), {.rows = odd});
         }),
         {"spec.rows.granularity", "3x5", "128x128"});
}

}  // namespace
}  // namespace octavo
