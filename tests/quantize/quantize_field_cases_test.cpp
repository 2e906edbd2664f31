// Inputs of the kind that broke other FP8 libraries: one test a line of the list, with the values
// worked out by exact arithmetic.

#include <gtest/gtest.h>

#include <cmath>

#include "octavo/formats/codec.h"
#include "octavo/formats/e8m0.h"
#include "octavo/quantize/amax.h"
#include "octavo/quantize/quantize.h"

namespace octavo {
namespace {

std::vector<int> bytes_of(const at::Tensor& data) {
  const at::Tensor bytes = data.view(at::kByte).contiguous();
  return std::vector<int>(bytes.data_ptr<std::uint8_t>(),
                          bytes.data_ptr<std::uint8_t>() + bytes.numel());
}

QuantizedOperand quantize_both(const at::Tensor& x, const LayoutSpec& layout) {
  return quantize_operand(x, {.rows = layout, .transposed = layout});
}

// inv_scale is a power of two here, so that 1 / scale is exact.
float inv_scale(const ScaledTensor& q, std::int64_t block = 0) {
  return 1.0f / q.scale.flatten()[block].item<float>();
}

constexpr Granularity kFp32Granularities[] = {
    Granularity::tensorwise(),  Granularity::rowwise(),     Granularity::colwise(),
    Granularity::block_1x128(), Granularity::block_128x1(), Granularity::block_128x128(),
};

TEST(ScalingAndQuantising, AmaxZeroGivesAFiniteScaleAndZeroData) {
  at::Tensor x = at::zeros({3, 40});
  x[1].fill_(-0.0);
  for (Format format : kAllFormats) {
    for (ScaleRounding rounding : {ScaleRounding::kNone, ScaleRounding::kPowerOfTwo}) {
      for (const Granularity& g : kFp32Granularities) {
        const LayoutSpec layout{.format = format, .granularity = g, .scale_rounding = rounding};
        const ScaledTensor q = quantize_operand(x, {.rows = layout}).rows;
        EXPECT_TRUE(q.scale.isfinite().all().item<bool>()) << to_string(g);
        EXPECT_TRUE((q.scale > 0).all().item<bool>()) << to_string(g);
        EXPECT_EQ(bytes_of(q.data[0]), std::vector<int>(40, 0x00)) << name(format);
        const int negative_zero = limits(format).has_negative_zero ? 0x80 : 0x00;
        EXPECT_EQ(bytes_of(q.data[1]), std::vector<int>(40, negative_zero)) << name(format);
        EXPECT_EQ(decode(format, static_cast<std::uint8_t>(negative_zero)), 0.0f);
      }
    }
  }
}

TEST(ScalingAndQuantising, AmaxBelowTheSmallestThatCanBeInvertedStaysFinite) {
  const at::Tensor x = at::tensor({0.0f, 1e-36f, -1e-36f}).view({1, 3});
  for (Format format : kAllFormats) {
    for (ScaleRounding rounding : {ScaleRounding::kNone, ScaleRounding::kPowerOfTwo}) {
      for (const Granularity& g : kFp32Granularities) {
        const LayoutSpec layout{.format = format, .granularity = g, .scale_rounding = rounding};
        const QuantizedOperand q = quantize_both(x, layout);
        EXPECT_TRUE(q.rows.scale.isfinite().all().item<bool>()) << to_string(g);
        EXPECT_EQ(bytes_of(q.rows.data)[0], 0x00) << to_string(g);
        EXPECT_EQ(bytes_of(q.transposed.data)[0], 0x00) << to_string(g);
        for (int byte : bytes_of(q.rows.data)) {
          EXPECT_TRUE(std::isfinite(decode(format, static_cast<std::uint8_t>(byte))));
        }
      }
    }
  }
}

TEST(ScalingAndQuantising, Float16InputHasFloat32Scales) {
  const at::Tensor x = at::tensor({1e-3f, -5e-4f}).to(at::kHalf).view({1, 2});
  const ScaledTensor q = quantize_operand(x, {.rows = LayoutSpec{}}).rows;
  EXPECT_EQ(q.scale.scalar_type(), at::kFloat);
  // fp16(1e-3) = 1049 * 2^-20; max over it is beyond fp16's 65504.
  const float amax = std::ldexp(1049.0f, -20);
  EXPECT_EQ(q.scale.item<float>(), 1.0f / (limits(Format::kE4M3FN).max / amax));
  EXPECT_GT(inv_scale(q), 447000.0f);
  EXPECT_EQ(bytes_of(q.data)[0], 0x7E);
}

TEST(ScalingAndQuantising, MxFloorClipsTheTopAndRceilDoesNot) {
  const at::Tensor x = at::tensor({960.0f, 957.0f}).view({1, 2});
  LayoutSpec layout{.granularity = Granularity::mx_1x32(), .mx_rounding = MxRounding::kFloor};
  const ScaledTensor floor = quantize_operand(x, {.rows = layout}).rows;
  EXPECT_EQ(bytes_of(floor.scale), std::vector<int>{128});  // 2
  EXPECT_EQ(bytes_of(floor.data)[1], 0x7E);                 // 448 * 2 = 896
  layout.mx_rounding = MxRounding::kRceil;
  const ScaledTensor rceil = quantize_operand(x, {.rows = layout}).rows;
  EXPECT_EQ(bytes_of(rceil.scale), std::vector<int>{129});  // 4
  EXPECT_EQ(bytes_of(rceil.data)[1], 0x77);                 // 240 * 4 = 960
  const at::Tensor above = at::tensor({448.0001f}).view({1, 1});
  EXPECT_EQ(bytes_of(quantize_operand(above, {.rows = layout}).rows.scale), std::vector<int>{128});
  layout.mx_rounding = MxRounding::kFloor;
  EXPECT_EQ(bytes_of(quantize_operand(above, {.rows = layout}).rows.scale), std::vector<int>{127});
}

TEST(ScalingAndQuantising, DirectionOfTheScale) {
  const at::Tensor x = at::tensor({0.5f, 1.0f, 3.0f, -6.0f}).view({2, 2});
  const QuantizedOperand q = quantize_both(x, {.granularity = Granularity::tensorwise()});
  EXPECT_EQ(bytes_of(q.rows.data), (std::vector<int>{0x61, 0x69, 0x76, 0xFE}));
  EXPECT_EQ(bytes_of(q.transposed.data), (std::vector<int>{0x61, 0x76, 0x69, 0xFE}));
  EXPECT_EQ(q.rows.scale.item<float>(), 0.013392857f);
  EXPECT_EQ(q.transposed.scale.item<float>(), 0.013392857f);
  EXPECT_EQ(inv_scale_of(6.0f, Format::kE4M3FN, ScaleRounding::kNone), 74.666664f);
}

// All rows of one matrix, one of them spoilt: only the blocks that hold the spoilt element change.
TEST(ScalingAndQuantising, OneNaNOrInfSpoilsItsOwnGroupOnly) {
  const at::Tensor clean = at::linspace(-3, 5, 150 * 200).view({150, 200});
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<LayoutSpec> layouts = {{.granularity = Granularity::mx_1x32()}};
  for (const Granularity& g : kFp32Granularities) {
    for (ScaleRounding rounding : {ScaleRounding::kNone, ScaleRounding::kPowerOfTwo}) {
      layouts.push_back({.granularity = g, .scale_rounding = rounding});
    }
  }
  for (float bad : {std::nanf(""), infinity, -infinity}) {
    at::Tensor x = clean.clone();
    const std::int64_t r = 70, c = 130;
    x[r][c] = bad;
    for (const LayoutSpec& layout : layouts) {
      const Granularity& g = layout.granularity;
      const ScaledTensor before = quantize_operand(clean, {.rows = layout}).rows;
      const ScaledTensor after = quantize_operand(x, {.rows = layout}).rows;
      const at::Tensor was = before.data.view(at::kByte), is = after.data.view(at::kByte);
      for (std::int64_t i = 0; i < 150; ++i) {
        for (std::int64_t j = 0; j < 200; ++j) {
          const bool same_block = (!g.block_rows || i / g.block_rows == r / g.block_rows) &&
                                  (!g.block_columns || j / g.block_columns == c / g.block_columns);
          const int now = is.data_ptr<std::uint8_t>()[i * 200 + j];
          if (!same_block) {
            ASSERT_EQ(now, int{was.data_ptr<std::uint8_t>()[i * 200 + j]}) << to_string(g);
          } else if (std::isnan(bad) || g.mx || (i == r && j == c)) {
            ASSERT_EQ(now, 0x7F) << to_string(g) << " " << i << " " << j;
          } else {
            ASSERT_EQ(now & 0x7F, 0) << to_string(g) << " " << i << " " << j;
          }
        }
      }
      const at::Tensor scale = after.scale.to(at::kFloat);
      if (g.mx) {
        EXPECT_EQ((after.scale.view(at::kByte) == 255).sum().item<std::int64_t>(), 1);
      } else {
        EXPECT_EQ(scale.isfinite().logical_not().sum().item<std::int64_t>(), 1) << to_string(g);
        const at::Tensor spoilt = scale.masked_select(scale.isfinite().logical_not());
        // With a power of two too: clearing a NaN's mantissa would make it Inf.
        EXPECT_EQ(spoilt.isnan().item<bool>(), std::isnan(bad)) << to_string(g);
      }
    }
  }
}

TEST(ScalingAndQuantising, AmaxOfNothingIsZero) {
  const float of_zero = scale_of(inv_scale_of(0.0f, Format::kE4M3FN, ScaleRounding::kNone));
  for (const auto& [m, k] : {std::pair{0, 5}, std::pair{5, 0}, std::pair{0, 0}}) {
    const at::Tensor x = at::empty({m, k});
    for (const Granularity& g : kFp32Granularities) {
      const QuantizedOperand q = quantize_both(x, {.granularity = g});
      EXPECT_EQ(q.rows.data.numel(), 0);
      EXPECT_EQ(q.rows.scale.sizes(), at::IntArrayRef({g.scale_rows(m), g.scale_columns(k)}));
      EXPECT_TRUE((q.rows.scale == of_zero).all().item<bool>()) << to_string(g);
      EXPECT_TRUE((q.transposed.scale == of_zero).all().item<bool>()) << to_string(g);
    }
  }
  EXPECT_EQ(amax_pass({}, {}).whole, 0.0f);
}

TEST(ScalingAndQuantising, PowerOfTwoIsFoundWithoutALogarithm) {
  const float amax = std::nextafter(1.75f, 2.0f);  // a log2 of max / amax rounds up to 8
  const at::Tensor x = at::tensor({amax, 0.5f}).view({1, 2});
  const LayoutSpec layout{.scale_rounding = ScaleRounding::kPowerOfTwo};
  const ScaledTensor q = quantize_operand(x, {.rows = layout}).rows;
  EXPECT_EQ(inv_scale(q), 128.0f);
  EXPECT_EQ(inv_scale(quantize_operand(at::tensor({1.75f}).view({1, 1}), {.rows = layout}).rows),
            256.0f);
}

TEST(ScalingAndQuantising, AmaxMapsToTheFormatsMaximum) {
  for (Format format : kAllFormats) {
    for (float amax : {3.7e-9f, 0.013f, 1.0f, 5.5f, 447.0f, 8.1e12f}) {
      const at::Tensor x = at::tensor({amax, -amax, amax / 3}).view({1, 3});
      const ScaledTensor q = quantize_operand(x, {.rows = LayoutSpec{.format = format}}).rows;
      EXPECT_EQ(bytes_of(q.data)[0], limits(format).max_byte) << name(format) << " " << amax;
      EXPECT_EQ(bytes_of(q.data)[1], limits(format).max_byte | 0x80) << name(format) << " " << amax;
    }
  }
}

TEST(ScalingAndQuantising, ViewsGiveTheContiguousResult) {
  const at::Tensor base = at::linspace(-2, 3, 70 * 140).view({70, 140}).to(at::kBFloat16);
  const at::Tensor views[] = {base.t(), base.narrow(1, 13, 90),
                              at::full({}, 0.25).to(at::kBFloat16).expand({33, 48})};
  for (const at::Tensor& view : views) {
    for (const Granularity& g : kFp32Granularities) {
      const QuantizedOperand a = quantize_both(view, {.granularity = g});
      const QuantizedOperand b = quantize_both(view.contiguous(), {.granularity = g});
      EXPECT_EQ(bytes_of(a.rows.data), bytes_of(b.rows.data)) << to_string(g);
      EXPECT_EQ(bytes_of(a.transposed.data), bytes_of(b.transposed.data)) << to_string(g);
      EXPECT_TRUE(at::equal(a.rows.scale, b.rows.scale)) << to_string(g);
      EXPECT_TRUE(at::equal(a.transposed.scale, b.transposed.scale)) << to_string(g);
      if (g == Granularity::tensorwise()) {
        EXPECT_EQ(bytes_of(a.transposed.data), bytes_of(a.rows.data.view(at::kByte).t()));
      }
    }
  }
}

}  // namespace
}  // namespace octavo
