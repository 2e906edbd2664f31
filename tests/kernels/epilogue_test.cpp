#include "octavo/kernels/cpu/epilogue.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/each_target.h"

namespace octavo::kernels {
namespace {

// Rounding to bf16 by its definition: of the two neighbours the nearer in real numbers, of equally
// near ones the even.
std::uint16_t to_bfloat16(float x) {
  if (x != x) return 0x7FC0;
  const std::uint32_t below = bits(x) >> 16;
  const double low = std::bit_cast<float>(below << 16);
  const float next = std::bit_cast<float>((below + 1) << 16);
  // Beyond the largest bf16 the next step would be 2^128.
  const double high = std::isinf(next) ? std::copysign(std::ldexp(1.0, 128), x) : double{next};
  if (std::isinf(x)) return static_cast<std::uint16_t>(below);
  const double to_low = std::fabs(x - low), to_high = std::fabs(high - x);
  const bool up = to_high < to_low || (to_high == to_low && (below & 1) != 0);
  return static_cast<std::uint16_t>(below + (up ? 1 : 0));
}

// The compiler's own conversion (software, nearest even).
std::uint16_t to_half(float x) {
  if (x != x) return 0x7E00;
  return std::bit_cast<std::uint16_t>(static_cast<_Float16>(x));
}

// Every upper half of a float with the lower halves around bf16's and fp16's rounding boundaries.
TEST(Epilogue, RoundsOnceToNearestEven) {
  std::vector<float> acc;
  for (std::uint32_t upper = 0; upper < 0x10000u; ++upper) {
    for (std::uint32_t lower : {0x0000u, 0x0001u, 0x0FFFu, 0x1000u, 0x1001u, 0x3000u, 0x7FFFu,
                                0x8000u, 0x8001u, 0xF000u, 0xFFFFu}) {
      acc.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  const float one = 1.0f;
  const std::int64_t n = static_cast<std::int64_t>(acc.size());
  for_each_target([&](const std::string& target) {
    std::vector<std::uint16_t> out(acc.size());
    EpilogueArgs args{.acc = acc.data(),
                      .columns = n,
                      .scale_a = &one,
                      .scale_b = &one,
                      .out = out.data(),
                      .out_type = HighPrecision::kBFloat16};
    epilogue_rows(args, 0, 1);
    for (std::size_t i = 0; i < acc.size(); ++i) {
      ASSERT_EQ(out[i], to_bfloat16(acc[i])) << target << std::hex << " of bits " << bits(acc[i]);
    }
    args.out_type = HighPrecision::kFloat16;
    epilogue_rows(args, 0, 1);
    for (std::size_t i = 0; i < acc.size(); ++i) {
      ASSERT_EQ(out[i], to_half(acc[i])) << target << std::hex << " of bits " << bits(acc[i]);
    }
  });
}

// All stride and bias combinations at lengths around the vectors', the order of the products, in
// place, a range of rows, and nothing written outside it.
TEST(Epilogue, ScalesThenBias) {
  const std::int64_t kRows = 4;
  for_each_target([&](const std::string& target) {
    for (std::int64_t columns = 1; columns <= 70; ++columns) {
      std::vector<float> acc(static_cast<std::size_t>(kRows * columns));
      std::vector<float> scale_a(4), scale_b(static_cast<std::size_t>(columns)), bias(scale_b);
      for (std::size_t i = 0; i < acc.size(); ++i) acc[i] = std::sin(0.7f * i) * 100.0f;
      for (int i = 0; i < 4; ++i) scale_a[i] = 0.1f + 0.03f * i;
      for (std::int64_t i = 0; i < columns; ++i) {
        scale_b[i] = 0.7f + 0.013f * i;
        bias[i] = 3.0f - 0.11f * i;
      }
      for (int variant = 0; variant < 8; ++variant) {
        const bool rows_a = variant & 1, rows_b = variant & 2, with_bias = variant & 4;
        std::vector<float> in_place = acc;
        std::vector<std::uint16_t> half(acc.size(), 0xABCD);
        EpilogueArgs args{.acc = acc.data(),
                          .columns = columns,
                          .scale_a = scale_a.data(),
                          .scale_a_stride = rows_a,
                          .scale_b = scale_b.data(),
                          .scale_b_stride = rows_b,
                          .bias = with_bias ? bias.data() : nullptr,
                          .out = half.data(),
                          .out_type = HighPrecision::kBFloat16};
        epilogue_rows(args, 1, 3);
        args.acc = in_place.data();
        args.out = in_place.data();
        args.out_type = HighPrecision::kFloat32;
        epilogue_rows(args, 1, 3);
        for (std::int64_t m = 0; m < kRows; ++m) {
          for (std::int64_t n = 0; n < columns; ++n) {
            const std::int64_t i = m * columns + n;
            if (m < 1 || m >= 3) {
              ASSERT_EQ(bits(in_place[i]), bits(acc[i]));
              ASSERT_EQ(half[i], 0xABCD);
              continue;
            }
            float expected = acc[i] * scale_a[rows_a ? m : 0];
            expected = expected * scale_b[rows_b ? n : 0];
            if (with_bias) expected = expected + bias[n];
            ASSERT_EQ(bits(in_place[i]), bits(expected))
                << target << " variant " << variant << " columns " << columns << " (" << m << ", "
                << n << ") got " << in_place[i] << " expected " << expected;
            ASSERT_EQ(half[i], to_bfloat16(expected)) << target << " columns " << columns;
          }
        }
      }
    }
  });
}

TEST(Epilogue, NoRowsOrColumnsTouchNothing) {
  epilogue_rows({}, 0, 3);
  epilogue_rows({.columns = 0, .out_type = HighPrecision::kBFloat16}, 0, 3);
}

}  // namespace
}  // namespace octavo::kernels
