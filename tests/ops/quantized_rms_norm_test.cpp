// RMSNorm that quantises its y on the way out, beside rms_norm() and quantize_input(): on the CPU,
// and on a GPU where there is one.
#include "octavo/ops/quantized_rms_norm.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "octavo/ops/rms_norm.h"
#include "tests/ops/reference.h"

namespace octavo {
namespace {

struct NormCase {
  at::Tensor x, residual, w, dy, dh;
};

NormCase make_norm_case(at::IntArrayRef sizes, const at::TensorOptions& options,
                        at::ScalarType w_dtype) {
  at::manual_seed(7);
  const auto leaf = [&](at::IntArrayRef of, at::ScalarType dtype) {
    return at::randn(of).to(options.device(), dtype).requires_grad_(true);
  };
  const at::ScalarType dtype = at::typeMetaToScalarType(options.dtype());
  const auto plain = [&] { return at::randn(sizes).to(options.device(), dtype); };
  return {leaf(sizes, dtype), leaf(sizes, dtype), leaf({sizes.back()}, w_dtype), plain(), plain()};
}

void expect_layout(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_EQ(got.defined(), want.defined()) << what;
  if (got.defined()) {
    EXPECT_TRUE(at::equal(got, want)) << what;
  }
}

// y, its layouts and all gradients, with and without a residual.
void expect_one_by_one(const NormCase& c, const std::string& text, bool need_dw,
                       const std::string& what) {
  const Recipe recipe = Recipe::parse(text);
  for (const bool adds : {false, true}) {
    const std::string where = what + (adds ? ", residual" : "") + (need_dw ? "" : ", no dw");
    std::vector<at::Tensor> inputs = {c.x, c.w}, gradients;
    if (adds) inputs.push_back(c.residual);
    at::Tensor h = c.x, y;
    if (adds) {
      std::tie(h, y) = add_rms_norm(c.x, c.residual, c.w, 1e-5);
    } else {
      y = rms_norm(c.x, c.w, 1e-5);
    }
    const QuantizedLayouts want = quantize_input(y, recipe, need_dw);
    const QuantizedRmsNorm got =
        quantized_rms_norm(c.x, adds ? std::optional<at::Tensor>(c.residual) : std::nullopt, c.w,
                           1e-5, recipe, need_dw);
    EXPECT_TRUE(at::equal(got.h, h)) << where;
    expect_layout(got.quantized.rows, want.rows, where + ": rows");
    expect_layout(got.quantized.rows_scale, want.rows_scale, where + ": row scales");
    expect_layout(got.quantized.transposed, want.transposed, where + ": transposed");
    expect_layout(got.quantized.transposed_scale, want.transposed_scale, where + ": column scales");

    ASSERT_EQ(got.y.sizes(), y.sizes()) << where;
    EXPECT_EQ(got.y.scalar_type(), y.scalar_type()) << where;
    const bool keeps = need_dw && !want.transposed.defined();
    if (keeps) {
      EXPECT_TRUE(at::equal(got.y, y)) << where;
    } else if (y.numel() > 0) {
      EXPECT_TRUE(got.y.detach().isnan().all().item<bool>()) << where;
    }
    const auto gradients_of = [&](const at::Tensor& h_out, const at::Tensor& y_out) {
      return adds ? torch::autograd::grad({h_out, y_out}, inputs, {c.dh, c.dy})
                  : torch::autograd::grad({y_out}, inputs, {c.dy});
    };
    const auto want_gradients = gradients_of(h, y), got_gradients = gradients_of(got.h, got.y);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_TRUE(at::equal(got_gradients[i], want_gradients[i])) << where << ", gradient " << i;
    }
  }
}

TEST(QuantizedRmsNorm, HasTheBitsOfTheOperationsOneByOne) {
  for (const std::string& recipe : testing::recipes()) {
    for (const auto& sizes :
         std::vector<std::vector<std::int64_t>>{{3, 11, 48}, {33, 72}, {0, 64}, {128, 256}}) {
      for (const bool need_dw : {true, false}) {
        expect_one_by_one(make_norm_case(sizes, at::kFloat, at::kFloat), recipe, need_dw, recipe);
      }
    }
    expect_one_by_one(make_norm_case({32, 64}, at::kBFloat16, at::kFloat), recipe, true,
                      recipe + " bf16");
  }
}

// Small, odd, of three types, and larger than a GPU's registers hold: written or computed twice.
TEST(QuantizedRmsNorm, HasTheBitsOfTheOperationsOneByOneOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU on this machine";
  for (const std::string& recipe : testing::recipes()) {
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{
             {2, 24, 64}, {33, 72}, {48, 100}, {0, 64}, {2304, 4096}, {16400, 1032}}) {
      for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
        if (sizes[0] > 2000 && dtype == at::kFloat) continue;
        const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(dtype);
        for (const bool need_dw : {true, false}) {
          expect_one_by_one(make_norm_case(sizes, options, dtype), recipe, need_dw,
                            recipe + " " + toString(dtype) + " " + std::to_string(sizes[0]));
        }
      }
    }
    expect_one_by_one(
        make_norm_case({2304, 4096}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16), at::kFloat),
        recipe, true, recipe + " fp32 weights");
  }
}

TEST(QuantizedRmsNorm, ANotANumberStaysInItsRow) {
  NormCase c = make_norm_case({4, 32}, at::kFloat, at::kFloat);
  const at::Tensor x = c.x.detach().clone();
  x[1][3] = std::numeric_limits<float>::quiet_NaN();
  x.requires_grad_(true);
  const Recipe recipe = Recipe::parse("rowwise");
  const at::Tensor clean = quantized_rms_norm(c.x, {}, c.w, 1e-5, recipe, false).quantized.rows;
  const at::Tensor rows = quantized_rms_norm(x, {}, c.w, 1e-5, recipe, false).quantized.rows;
  EXPECT_FALSE(at::equal(rows[1], clean[1]));
  for (const int row : {0, 2, 3}) EXPECT_TRUE(at::equal(rows[row], clean[row])) << row;
}

TEST(QuantizedRmsNorm, OnlyWhileAGraphIsRecorded) {
  const NormCase c = make_norm_case({4, 32}, at::kFloat, at::kFloat);
  const at::NoGradGuard no_grad;
  EXPECT_THROW(quantized_rms_norm(c.x, {}, c.w, 1e-5, Recipe::parse("rowwise"), true), c10::Error);
}

}  // namespace
}  // namespace octavo
