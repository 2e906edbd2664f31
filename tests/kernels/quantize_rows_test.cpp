#include "octavo/kernels/cpu/quantize_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "octavo/kernels/cpu/targets.h"
#include "tests/quantize/scaling_reference.h"

namespace octavo::kernels {
namespace {

template <class Bits>
ConstMatrix row_of(const std::vector<Bits>& x, HighPrecision type) {
  const auto n = static_cast<std::int64_t>(x.size());
  return {x.data(), type, 1, n, n, 1};
}

// Every element of x, unscaled, against the reference, on every target.
template <class Bits>
void expect_cast(const std::vector<Bits>& x, HighPrecision type, float inv_scale = 1.0f) {
  for (std::int64_t cpu : cpu_targets()) {
    use_cpu_target(cpu);
    for (Format format : kAllFormats) {
      std::vector<std::uint8_t> bytes(x.size());
      LayoutTarget target{.blocks = Blocks::kWhole, .format = format};
      target.data = bytes.data();
      target.stride = static_cast<std::int64_t>(x.size());
      target.inv_scale = &inv_scale;
      quantize_rows(row_of(x, type), 0, 1, target);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float value = value_of(type, x[i]);
        ASSERT_EQ(int{bytes[i]}, int{reference::quantize(format, value, inv_scale)})
            << cpu_target_name(cpu) << " " << name(format) << ": x[" << i << "] = " << value << " ("
            << std::hexfloat << value << ")";
      }
    }
  }
  use_cpu_target(0);
}

template <class Bits>
std::vector<Bits> every_finite_pattern(HighPrecision type) {
  std::vector<Bits> x;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    if (std::isfinite(value_of(type, bits))) x.push_back(static_cast<Bits>(bits));
  }
  return x;
}

TEST(QuantizeRows, EveryBFloat16) {
  expect_cast(every_finite_pattern<std::uint16_t>(HighPrecision::kBFloat16),
              HighPrecision::kBFloat16);
}

TEST(QuantizeRows, EveryFloat16) {
  expect_cast(every_finite_pattern<std::uint16_t>(HighPrecision::kFloat16),
              HighPrecision::kFloat16);
  // The largest inv_scale there is: fp16 subnormals must not be lost before the product.
  expect_cast(every_finite_pattern<std::uint16_t>(HighPrecision::kFloat16), HighPrecision::kFloat16,
              4.48e14f);
}

TEST(QuantizeRows, Float32AroundEveryRoundingBoundary) {
  std::vector<std::uint32_t> x;
  for (Format format : kAllFormats) {
    for (int byte = 0; byte < 256; ++byte) {
      const float value = decode(format, static_cast<std::uint8_t>(byte));
      const float next = decode(format, static_cast<std::uint8_t>(byte + 1));
      if (!std::isfinite(value)) continue;
      const float middle = std::isfinite(next) ? (value + next) / 2 : value;
      for (float at : {value, middle}) {
        for (int ulps = -2; ulps <= 2; ++ulps) {
          x.push_back(std::bit_cast<std::uint32_t>(at) + static_cast<std::uint32_t>(ulps));
          if (!std::isfinite(std::bit_cast<float>(x.back()))) x.pop_back();
        }
      }
    }
  }
  expect_cast(x, HighPrecision::kFloat32);
}

TEST(QuantizeRows, RandomFloat32Patterns) {
  std::mt19937 random(7);
  std::vector<std::uint32_t> x;
  while (x.size() < 60000) {
    const std::uint32_t bits = random();
    if (std::isfinite(std::bit_cast<float>(bits))) x.push_back(bits);
  }
  expect_cast(x, HighPrecision::kFloat32);
  // Exponents near the formats' own, where nearly all of the above are 0 or saturate.
  for (std::uint32_t& bits : x) bits = (bits & 0x80FFFFFFu) | (110u + (bits >> 24 & 31u)) << 23;
  expect_cast(x, HighPrecision::kFloat32, 1.7f);
}

// Lengths around vector sizes, with guards on both sides, from a start that is not aligned.
TEST(QuantizeRows, LengthsAndGuards) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (std::int64_t cpu : cpu_targets()) {
    use_cpu_target(cpu);
    for (std::int64_t n : {1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300}) {
      const std::int64_t rows = 3, start = 3, guard = 64;
      std::vector<float> x(static_cast<std::size_t>(start + rows * n));
      for (float& value : x) value = normal(random);
      for (bool given : {false, true}) {
        const std::vector<float> inv_scales = {20.0f, 30.0f, 40.0f};
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows * n + 2 * guard), 0xAA);
        std::vector<float> scales(static_cast<std::size_t>(rows), -1.0f);
        LayoutTarget target{.blocks = Blocks::kRow};
        target.data = bytes.data() + guard;
        target.stride = n;
        target.inv_scale = given ? inv_scales.data() : nullptr;
        target.scale = scales.data();
        target.scale_row_stride = 1;
        quantize_rows({x.data() + start, HighPrecision::kFloat32, rows, n, n, 1}, 0, rows, target);
        const std::string at = cpu_target_name(cpu) + " n " + std::to_string(n);
        for (std::int64_t r = 0; r < rows; ++r) {
          const float* row = x.data() + start + r * n;
          float amax = 0;
          for (std::int64_t i = 0; i < n; ++i) amax = std::max(amax, std::fabs(row[i]));
          const auto index = static_cast<std::size_t>(r);
          float inv_scale = inv_scales[index];
          if (!given) {
            inv_scale = reference::inv_scale(target.format, amax, target.scale_rounding);
            ASSERT_EQ(scales[index], reference::scale(inv_scale)) << at;
          }
          for (std::int64_t i = 0; i < n; ++i) {
            ASSERT_EQ(int{target.data[r * n + i]},
                      int{reference::quantize(target.format, row[i], inv_scale)})
                << at << " row " << r << " column " << i;
          }
        }
        for (std::int64_t i = 0; i < guard; ++i) {
          ASSERT_EQ(int{bytes[static_cast<std::size_t>(i)]}, 0xAA) << at;
          ASSERT_EQ(int{bytes[bytes.size() - 1 - static_cast<std::size_t>(i)]}, 0xAA) << at;
        }
      }
    }
  }
  use_cpu_target(0);
}

TEST(QuantizeRows, NothingForAnEmptyRange) {
  std::uint8_t byte = 0x55;
  const float inv_scale = 1.0f, x = 3.0f;
  LayoutTarget target{.blocks = Blocks::kWhole};
  target.data = &byte;
  target.inv_scale = &inv_scale;
  quantize_rows({&x, HighPrecision::kFloat32, 1, 1, 1, 1}, 1, 1, target);
  EXPECT_EQ(int{byte}, 0x55);
}

}  // namespace
}  // namespace octavo::kernels
