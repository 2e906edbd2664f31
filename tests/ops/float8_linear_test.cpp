#include "octavo/ops/float8_linear.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/ops/reference.h"

namespace octavo {
namespace {

using testing::decibels;
using testing::Gradients;
using testing::leaf;
using testing::reference_linear;
using testing::same_bits;

at::Tensor randn(at::IntArrayRef sizes, std::uint64_t seed) {
  at::manual_seed(seed);
  return at::randn(sizes);
}

Gradients run(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
              const at::Tensor& dy, const Recipe& recipe,
              KeepWeightTransposed keep = KeepWeightTransposed::kAuto) {
  for (at::Tensor t : {x, w, bias}) {
    if (t.defined()) t.mutable_grad() = at::Tensor();
  }
  const at::Tensor y =
      float8_linear(x, w, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt, recipe,
                    {.keep_weight_transposed = keep});
  torch::autograd::backward({y}, {dy});
  return {y.detach(), x.grad(), w.grad(), bias.defined() ? bias.grad() : at::Tensor()};
}

// Against the products of the dequantised operands: this pins the implementation, not the format.
TEST(Float8Linear, AgreesWithDequantisedOperands) {
  const std::vector<std::array<std::int64_t, 3>> sizes = {
      {33, 48, 32}, {128, 256, 192}, {5, 130, 15}, {1, 1, 1}, {17, 33, 127}};
  for (const std::string& text : testing::recipes()) {
    const Recipe recipe = Recipe::parse(text);
    for (const auto& [m, k, n] : sizes) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        if (dtype != at::kFloat && m > 33) continue;  // the types differ in one rounding only
        SCOPED_TRACE(text + " " + std::to_string(m) + "x" + std::to_string(k) + "x" +
                     std::to_string(n) + " " + c10::toString(dtype));
        const at::Tensor x = leaf(randn({m, k}, 1), dtype), w = leaf(randn({n, k}, 2), dtype),
                         bias = leaf(randn({n}, 3), dtype);
        const at::Tensor dy = randn({m, n}, 4).to(dtype);
        const Gradients got = run(x, w, bias, dy, recipe);
        const Gradients want = reference_linear(x.detach(), w.detach(), bias.detach(), dy, recipe);
        EXPECT_EQ(got.y.scalar_type(), dtype);
        // fp32 rounds sums of K terms, at most 24 bits less log2(sqrt(K)): above 120 dB here. bf16
        // rounds the result to 8 bits, 54 dB; fp16 to 11 bits, 72 dB.
        const double floor = dtype == at::kFloat ? 100 : dtype == at::kBFloat16 ? 50 : 65;
        EXPECT_TRUE(decibels(got.y, want.y) >= floor) << decibels(got.y, want.y);
        EXPECT_TRUE(decibels(got.dx, want.dx) >= floor) << decibels(got.dx, want.dx);
        EXPECT_TRUE(decibels(got.dw, want.dw) >= floor) << decibels(got.dw, want.dw);
        EXPECT_TRUE(decibels(got.dbias, want.dbias) >= floor) << decibels(got.dbias, want.dbias);
      }
    }
  }
}

// field_cases, Module and autograd: "All combinations of requires-grad of weight, input and bias:
// undefined grads where off; [...] bias.grad = the unquantised output gradient summed over rows in
// fp32." (That a frozen weight costs no product is in dispatch_test.)
TEST(Float8Linear, AllCombinationsOfRequiresGradOfWeightInputAndBias) {
  const at::Tensor dy = randn({33, 32}, 4);
  for (const std::string& text : testing::recipes()) {
    const Recipe recipe = Recipe::parse(text);
    const at::Tensor all_x = leaf(randn({33, 48}, 1), at::kFloat),
                     all_w = leaf(randn({32, 48}, 2), at::kFloat),
                     all_bias = leaf(randn({32}, 3), at::kFloat);
    const Gradients all = run(all_x, all_w, all_bias, dy, recipe);
    for (int bits = 0; bits < 8; ++bits) {
      SCOPED_TRACE(text + " combination " + std::to_string(bits));
      const at::Tensor x = leaf(all_x, at::kFloat, bits & 1), w = leaf(all_w, at::kFloat, bits & 2),
                       bias = leaf(all_bias, at::kFloat, bits & 4);
      const at::Tensor y = float8_linear(x, w, bias, recipe);
      EXPECT_TRUE(same_bits(y, all.y));
      EXPECT_EQ(y.requires_grad(), bits != 0);
      if (bits == 0) continue;
      torch::autograd::backward({y}, {dy});
      EXPECT_EQ(x.grad().defined(), bool(bits & 1));
      EXPECT_EQ(w.grad().defined(), bool(bits & 2));
      EXPECT_EQ(bias.grad().defined(), bool(bits & 4));
      EXPECT_TRUE(!(bits & 1) || same_bits(x.grad(), all.dx));
      EXPECT_TRUE(!(bits & 2) || same_bits(w.grad(), all.dw));
      EXPECT_TRUE(!(bits & 4) || same_bits(bias.grad(), all.dbias));
    }
  }
}

TEST(Float8Linear, BiasGradientIsTheUnquantisedGradientSummedInFp32) {
  // 4096 rows of 1 + 2^-8 in bf16: FP8 would drop the 2^-8, a bf16 sum would stop near 256.
  const at::Tensor x = leaf(randn({4096, 16}, 1), at::kBFloat16),
                   w = leaf(randn({16, 16}, 2), at::kFloat),
                   bias = leaf(randn({16}, 3), at::kFloat);
  const at::Tensor dy = at::full({4096, 16}, 1.0078125, at::kBFloat16);
  const Gradients got = run(x, w, bias, dy, Recipe{});
  EXPECT_TRUE(same_bits(got.dbias, at::full({16}, 4096 * 1.0078125, at::kFloat)));
}

TEST(Float8Linear, GradientsOfSomeInputsOnly) {
  const at::Tensor x = leaf(randn({9, 20}, 1), at::kFloat), w = leaf(randn({7, 20}, 2), at::kFloat);
  const at::Tensor dy = randn({9, 7}, 3);
  const Gradients both = run(x, w, at::Tensor(), dy, Recipe{});
  for (const at::Tensor& input : {x, w}) {
    const at::Tensor y = float8_linear(x, w, std::nullopt, Recipe{});
    const auto gradients = torch::autograd::grad({y}, {input}, {dy});
    EXPECT_TRUE(same_bits(gradients[0], input.is_same(x) ? both.dx : both.dw));
  }
}

TEST(Float8Linear, KeepingTheTransposedWeightChangesNoBit) {
  const at::Tensor dy = randn({40, 70}, 4);
  for (const std::string& text : testing::recipes()) {
    SCOPED_TRACE(text);
    const at::Tensor x = leaf(randn({40, 130}, 1), at::kBFloat16),
                     w = leaf(randn({70, 130}, 2), at::kBFloat16);
    const Recipe recipe = Recipe::parse(text);
    const auto with = [&](KeepWeightTransposed keep) {
      return run(x, w, at::Tensor(), dy.to(at::kBFloat16), recipe, keep);
    };
    const Gradients on = with(KeepWeightTransposed::kOn), off = with(KeepWeightTransposed::kOff),
                    chosen = with(KeepWeightTransposed::kAuto);
    for (const Gradients& other : {off, chosen}) {
      EXPECT_TRUE(same_bits(on.dx, other.dx));
      EXPECT_TRUE(same_bits(on.dw, other.dw));
    }
  }
}

TEST(Float8Linear, WeightChangedBetweenForwardAndBackward) {
  // Kept bytes are forward's; a weight that is quantised again must still be forward's, and
  // autograd refuses it once it was changed.
  const at::Tensor x = leaf(randn({4, 8}, 1), at::kFloat), w = leaf(randn({6, 8}, 2), at::kFloat);
  const auto change = [&](KeepWeightTransposed keep) {
    const at::Tensor y =
        float8_linear(x, w, std::nullopt, Recipe{}, {.keep_weight_transposed = keep});
    {
      at::NoGradGuard no_grad;
      w.add(0);  // reading is no change
      at::Tensor(w).mul_(2);
    }
    torch::autograd::backward({y.sum()});
  };
  EXPECT_NO_THROW(change(KeepWeightTransposed::kOn));
  EXPECT_THROW(change(KeepWeightTransposed::kOff), c10::Error);
}

// field_cases, Scaling: "[...] a stride-0 gradient (from a sum) give[s] the contiguous result".
TEST(Float8Linear, StridedInputsAndGradientsGiveTheContiguousResult) {
  for (const std::string& text : testing::recipes()) {
    SCOPED_TRACE(text);
    const Recipe recipe = Recipe::parse(text);
    const at::Tensor x = leaf(randn({40, 136}, 1), at::kFloat),
                     w = leaf(randn({24, 136}, 2), at::kFloat);
    const at::Tensor ones = at::ones({40, 24});
    const Gradients want = run(x, w, at::Tensor(), ones, recipe);
    const Gradients expanded = run(x, w, at::Tensor(), at::ones({1, 1}).expand({40, 24}), recipe);
    EXPECT_TRUE(same_bits(want.dx, expanded.dx));
    EXPECT_TRUE(same_bits(want.dw, expanded.dw));
    // x and w as transposed views and as column slices of wider matrices
    const auto transposed = [](const at::Tensor& t) {
      return t.detach().t().contiguous().t().set_requires_grad(true);
    };
    const auto slice = [](const at::Tensor& t) {
      at::Tensor wide = at::randn({t.size(0), t.size(1) + 24});
      wide.slice(1, 8, 8 + t.size(1)).copy_(t.detach());
      return wide.slice(1, 8, 8 + t.size(1)).detach().set_requires_grad(true);
    };
    for (const auto& view : {std::function(transposed), std::function(slice)}) {
      const Gradients got = run(view(x), view(w), at::Tensor(), ones, recipe);
      EXPECT_TRUE(same_bits(want.y, got.y));
      EXPECT_TRUE(same_bits(want.dx, got.dx));
      EXPECT_TRUE(same_bits(want.dw, got.dw));
    }
  }
}

TEST(Float8Linear, LeadingDimensions) {
  const at::Tensor w = leaf(randn({24, 40}, 2), at::kFloat),
                   bias = leaf(randn({24}, 3), at::kFloat);
  for (const std::string& text : testing::recipes()) {
    SCOPED_TRACE(text);
    const Recipe recipe = Recipe::parse(text);
    const at::Tensor x = leaf(randn({30, 40}, 1), at::kFloat), dy = randn({30, 24}, 4);
    const Gradients want = run(x, w, bias, dy, recipe);
    const at::Tensor x3 = x.detach().view({2, 5, 3, 40}).clone().set_requires_grad(true);
    const Gradients got = run(x3, w, bias, dy.view({2, 5, 3, 24}), recipe);
    EXPECT_EQ(got.y.sizes(), (std::vector<std::int64_t>{2, 5, 3, 24}));
    EXPECT_EQ(got.dx.sizes(), x3.sizes());
    EXPECT_TRUE(same_bits(got.y.view({30, 24}), want.y));
    EXPECT_TRUE(same_bits(got.dx.view({30, 40}), want.dx));
    EXPECT_TRUE(same_bits(got.dw, want.dw));
    EXPECT_TRUE(same_bits(got.dbias, want.dbias));
    // Leading dimensions that no view can flatten
    const at::Tensor swapped =
        x.detach().view({5, 6, 40}).transpose(0, 1).contiguous().set_requires_grad(true);
    const Gradients exchanged = run(swapped.detach().transpose(0, 1).set_requires_grad(true), w,
                                    bias, dy.view({5, 6, 24}), recipe);
    EXPECT_TRUE(same_bits(exchanged.y.reshape({30, 24}), want.y));
    EXPECT_TRUE(same_bits(exchanged.dw, want.dw));
  }
  const at::Tensor vector = leaf(randn({40}, 1), at::kFloat);
  const Gradients one = run(vector, w, bias, randn({24}, 5), Recipe{});
  EXPECT_EQ(one.y.sizes(), (std::vector<std::int64_t>{24}));
  EXPECT_EQ(one.dx.sizes(), (std::vector<std::int64_t>{40}));
}

// field_cases, GEMM: "Sizes that are no multiple of 16 (tokens 33, in 48, out 32; also 15
// outputs)": AgreesWithDequantisedOperands has 33x48x32 and 5x130x15.
TEST(Float8Linear, EmptySizes) {
  const std::vector<std::array<std::int64_t, 3>> sizes = {
      {0, 48, 32}, {33, 48, 0}, {33, 0, 32}, {0, 0, 32}, {0, 48, 0}, {33, 0, 0}, {0, 0, 0}};
  for (const std::string& text : testing::recipes()) {
    for (const auto& [m, k, n] : sizes) {
      SCOPED_TRACE(text + " " + std::to_string(m) + "x" + std::to_string(k) + "x" +
                   std::to_string(n));
      const at::Tensor x = leaf(randn({m, k}, 1), at::kFloat),
                       w = leaf(randn({n, k}, 2), at::kFloat),
                       bias = leaf(randn({n}, 3), at::kFloat);
      const at::Tensor dy = randn({m, n}, 4);
      const Gradients got = run(x, w, bias, dy, Recipe::parse(text));
      EXPECT_TRUE(same_bits(got.y, bias.detach().expand({m, n}).contiguous() +
                                       at::zeros({m, n})));  // a sum of no terms, plus bias
      EXPECT_TRUE(same_bits(got.dx, at::zeros({m, k})));
      EXPECT_TRUE(same_bits(got.dw, at::zeros({n, k})));
      EXPECT_TRUE(at::allclose(got.dbias, dy.sum(0)));
    }
  }
}

TEST(Float8Linear, EachTensorKeepsItsDtype) {
  const at::Tensor x = leaf(randn({8, 16}, 1), at::kBFloat16),
                   w = leaf(randn({24, 16}, 2), at::kFloat), bias = leaf(randn({24}, 3), at::kHalf);
  for (const std::string& text : testing::recipes()) {
    SCOPED_TRACE(text);
    const Gradients got = run(x, w, bias, at::ones({8, 24}, at::kBFloat16), Recipe::parse(text));
    EXPECT_EQ(got.y.scalar_type(), at::kBFloat16);
    EXPECT_EQ(got.dx.scalar_type(), at::kBFloat16);
    EXPECT_EQ(got.dw.scalar_type(), at::kFloat);
    EXPECT_EQ(got.dbias.scalar_type(), at::kHalf);
  }
}

TEST(Float8Linear, SecondDerivativesAreAnError) {
  const at::Tensor x = leaf(randn({4, 8}, 1), at::kFloat), w = leaf(randn({6, 8}, 2), at::kFloat);
  for (const KeepWeightTransposed keep : {KeepWeightTransposed::kOn, KeepWeightTransposed::kOff}) {
    const at::Tensor y =
        float8_linear(x, w, std::nullopt, Recipe{}, {.keep_weight_transposed = keep});
    const at::Tensor dx = torch::autograd::grad({y.sum()}, {x}, {}, std::nullopt,
                                                /*create_graph=*/true)[0];
    EXPECT_TRUE(dx.requires_grad());
    try {
      torch::autograd::backward({dx.square().sum()});
      FAIL() << "must not be silent";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("float8_linear's backward has no derivative"),
                std::string::npos);
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("float8_linear's backward has no derivative"),
                std::string::npos);
    }
  }
}

TEST(Float8Linear, ErrorsNameTheArgumentAndTheRepair) {
  const at::Tensor x = at::randn({4, 8}), w = at::randn({6, 8});
  const auto expect = [](auto&& call, const std::vector<std::string>& parts) {
    try {
      call();
      FAIL() << "expected an error with '" << parts[0] << "'";
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      for (const std::string& part : parts) {
        EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
      }
    }
  };
  const auto linear = [](const at::Tensor& x, const at::Tensor& w,
                         const std::optional<at::Tensor>& bias = std::nullopt) {
    return float8_linear(x, w, bias, Recipe{});
  };
  expect([&] { linear(x, at::randn({8, 6})); }, {"x (..., K) and w (N, K)", "[4, 8]", "[8, 6]"});
  expect([&] { linear(x, at::randn({6})); }, {"w must be (N, K)"});
  expect([&] { linear(at::randn({}), w); }, {"x must be (..., K)"});
  expect([&] { linear(x.to(at::kDouble), w); },
         {"x must be float32", "Double", "to(torch.float32)"});
  expect([&] { linear(x, w.to(at::kLong)); }, {"w must be float32"});
  expect([&] { linear(x, w, at::randn({5})); }, {"bias must hold one value", "6 rows"});
  expect([&] { linear(x, w, at::randn({6, 1})); }, {"bias must be (N)"});
  Recipe mx_fnuz;
  mx_fnuz.name = RecipeName::kMxfp8;
  mx_fnuz.flavour = FlavourChoice::kFNUZ;
  expect([&] { float8_linear(x, w, std::nullopt, mx_fnuz); }, {"mxfp8", "rowwise"});
}

}  // namespace
}  // namespace octavo
