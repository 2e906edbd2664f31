#include "octavo/kernels/cpu/quantize_tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "octavo/kernels/cpu/targets.h"
#include "tests/quantize/scaling_reference.h"

namespace octavo::kernels {
namespace {

constexpr std::int64_t kGuard = 192;
constexpr std::uint8_t kUntouched = 0xAA;

// One layout's memory: data with a gap after each row and guards on both sides, scales in a layout
// of their own.
struct Output {
  LayoutTarget target;
  std::int64_t rows, columns;  // of the layout's own matrix
  std::vector<std::uint8_t> bytes, codes;
  std::vector<float> scales, given;

  Output(Blocks blocks, Format format, std::int64_t m, std::int64_t k, bool transposed)
      : rows(transposed ? k : m), columns(transposed ? m : k) {
    target.blocks = blocks;
    target.format = format;
    target.stride = columns + 5;
    bytes.assign(static_cast<std::size_t>(rows * target.stride + 2 * kGuard), kUntouched);
    codes.assign(static_cast<std::size_t>((m + 31) * (k + 31)), kUntouched);
    scales.assign(codes.size(), -1.0f);
    target.data = bytes.data() + kGuard;
    target.scale_row_stride = k + 3;
    target.scale_column_stride = 1;
    const bool mx = blocks == Blocks::kMx1x32 || blocks == Blocks::kMx32x1;
    target.scale = mx ? static_cast<void*>(codes.data()) : scales.data();
    if (blocks == Blocks::kWhole || blocks == Blocks::kRow || blocks == Blocks::kColumn) {
      for (std::int64_t i = 0; i < std::max(m, k); ++i) {
        given.push_back(8.0f + static_cast<float>(i % 7));
      }
      target.inv_scale = given.data();
    }
  }

  // Rows and columns of a block, in x's orientation.
  std::pair<std::int64_t, std::int64_t> block() const {
    switch (target.blocks) {
      case Blocks::k1x128:
        return {1, 128};
      case Blocks::k128x1:
        return {128, 1};
      case Blocks::k128x128:
        return {128, 128};
      case Blocks::kMx1x32:
        return {1, 32};
      case Blocks::kMx32x1:
        return {32, 1};
      default:
        return {1, 1};
    }
  }
};

struct Case {
  std::vector<float> x;  // (M, K) with a row stride
  std::int64_t m, k, stride;

  float at(std::int64_t r, std::int64_t c) const {
    return x[static_cast<std::size_t>(r * stride + c)];
  }
};

// inv_scale of element (r, c) of x, from the definition.
float inv_scale(const Case& x, const Output& out, std::int64_t r, std::int64_t c) {
  const LayoutTarget& t = out.target;
  if (t.blocks == Blocks::kWhole) return out.given[0];
  if (t.blocks == Blocks::kRow) return out.given[static_cast<std::size_t>(r)];
  if (t.blocks == Blocks::kColumn) return out.given[static_cast<std::size_t>(c)];
  const auto [height, width] = out.block();
  float amax = 0;
  for (std::int64_t i = r / height * height; i < std::min(x.m, (r / height + 1) * height); ++i) {
    for (std::int64_t j = c / width * width; j < std::min(x.k, (c / width + 1) * width); ++j) {
      if (std::isnan(x.at(i, j))) return std::numeric_limits<float>::quiet_NaN();
      amax = std::max(amax, std::fabs(x.at(i, j)));
    }
  }
  if (t.blocks != Blocks::kMx1x32 && t.blocks != Blocks::kMx32x1) {
    return reference::inv_scale(t.format, amax, t.scale_rounding);
  }
  const int code = reference::mx_code(t.format, amax, t.mx_rounding);
  return code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, 127 - code);
}

void expect_layout(const Case& x, const Output& out, bool transposed, const std::string& what) {
  const auto [height, width] = out.block();
  std::vector<std::uint8_t> want(out.bytes.size(), kUntouched);
  std::vector<std::vector<float>> block_inv_scale(
      static_cast<std::size_t>((x.m + height - 1) / height));
  for (std::int64_t i = 0; i * height < x.m; ++i) {
    for (std::int64_t j = 0; j * width < x.k; ++j) {
      block_inv_scale[static_cast<std::size_t>(i)].push_back(
          inv_scale(x, out, i * height, j * width));
      if (out.target.inv_scale != nullptr) continue;
      const float inv = block_inv_scale[static_cast<std::size_t>(i)].back();
      const auto at = static_cast<std::size_t>(i * out.target.scale_row_stride + j);
      if (width == 32 || height == 32) {
        const int code = std::isnan(inv) ? 255 : 127 - std::ilogb(inv);
        ASSERT_EQ(int{out.codes[at]}, code) << what << " block " << i << ", " << j;
      } else {
        const float scale = reference::scale(inv);
        ASSERT_TRUE(out.scales[at] == scale || (std::isnan(scale) && std::isnan(out.scales[at])))
            << what << " block " << i << ", " << j << ": " << out.scales[at] << " for " << scale;
      }
    }
  }
  for (std::int64_t r = 0; r < x.m; ++r) {
    for (std::int64_t c = 0; c < x.k; ++c) {
      const float inv = block_inv_scale[static_cast<std::size_t>(r / height)]
                                       [static_cast<std::size_t>(c / width)];
      const std::int64_t at =
          kGuard + (transposed ? c * out.target.stride + r : r * out.target.stride + c);
      want[static_cast<std::size_t>(at)] = reference::quantize(out.target.format, x.at(r, c), inv);
    }
  }
  for (std::size_t i = 0; i < want.size(); ++i) {  // the gaps and guards too
    const auto at = static_cast<std::int64_t>(i) - kGuard;
    ASSERT_EQ(int{out.bytes[i]}, int{want[i]})
        << what << " layout row " << at / out.target.stride << " column " << at % out.target.stride;
  }
}

constexpr Blocks kRowsBlocks[] = {Blocks::kWhole,  Blocks::kRow,   Blocks::kColumn,
                                  Blocks::k1x128,  Blocks::k128x1, Blocks::k128x128,
                                  Blocks::kMx1x32, Blocks::kMx32x1};

// Every kind of block in the rows layout with every other turn of it in the transposed one, in one
// call or tile by tile, with nothing written outside.
TEST(QuantizeTiles, SizesBlocksAndGuards) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  int turn = 0;
  for (std::int64_t m : {1, 31, 33, 128, 129}) {
    for (std::int64_t k : {1, 15, 17, 64, 128, 200}) {
      Case x{{}, m, k, k + 3};
      for (std::int64_t i = 0; i < m * x.stride; ++i) x.x.push_back(normal(random));
      if (turn % 5 == 0) x.x[static_cast<std::size_t>((m - 1) * x.stride + k / 2)] = HUGE_VALF;
      const ConstMatrix view{x.x.data(), HighPrecision::kFloat32, m, k, x.stride, 1};
      for (std::size_t i = 0; i < std::size(kRowsBlocks); ++i, ++turn) {
        for (std::int64_t cpu : cpu_targets()) {
          use_cpu_target(cpu);
          const Blocks of_transposed = kRowsBlocks[(i + static_cast<std::size_t>(turn)) % 8];
          // inv_scales that are given promise finite elements.
          const bool given = !std::isfinite(x.at(m - 1, k / 2));
          if (given && (kRowsBlocks[i] <= Blocks::kColumn || of_transposed <= Blocks::kColumn)) {
            continue;
          }
          Output rows(kRowsBlocks[i], kAllFormats[turn % 2], m, k, false);
          Output transposed(of_transposed, kAllFormats[turn / 2 % 2], m, k, true);
          const std::int64_t tiles = tile_count(m, k);
          if (turn % 2 == 0) {
            quantize_tiles(view, 0, tiles, &rows.target, &transposed.target);
          } else {
            for (std::int64_t t = tiles; t-- > 0;) {
              quantize_tiles(view, t, t + 1, &rows.target, nullptr);
              quantize_tiles(view, t, t + 1, nullptr, &transposed.target);
            }
          }
          const std::string what = cpu_target_name(cpu) + " " + std::to_string(m) + "x" +
                                   std::to_string(k) + " blocks " +
                                   std::to_string(static_cast<int>(kRowsBlocks[i])) + ", " +
                                   std::to_string(static_cast<int>(of_transposed));
          expect_layout(x, rows, false, what + " rows");
          expect_layout(x, transposed, true, what + " transposed");
          if (HasFatalFailure()) return use_cpu_target(0);
        }
      }
    }
  }
  use_cpu_target(0);
}

TEST(QuantizeTiles, TileCount) {
  EXPECT_EQ(tile_count(0, 5), 0);
  EXPECT_EQ(tile_count(5, 0), 0);
  EXPECT_EQ(tile_count(1, 1), 1);
  EXPECT_EQ(tile_count(128, 128), 1);
  EXPECT_EQ(tile_count(129, 257), 6);
}

}  // namespace
}  // namespace octavo::kernels
