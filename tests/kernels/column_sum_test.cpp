#include "octavo/kernels/cpu/column_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "octavo/formats/codec.h"

namespace octavo::kernels::cpu {
namespace {

// Elements of a type as bits, with values spread over many magnitudes.
std::vector<std::uint32_t> random_bits(HighPrecision type, std::size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint32_t> bits(n);
  for (std::uint32_t& b : bits) {
    const std::uint32_t fp32 = internal::bits_of(normal(generator));
    if (type == HighPrecision::kFloat32) b = fp32;
    if (type == HighPrecision::kBFloat16) b = fp32 >> 16;
    if (type == HighPrecision::kFloat16) {  // the leading bits; 0 where fp16 would be subnormal
      const std::uint32_t exponent = fp32 >> 23 & 0xFFu;
      const std::uint32_t rebased = exponent < 113u ? 0u : (exponent - 112u) << 10;
      b = (fp32 >> 16 & 0x8000u) | rebased | (exponent < 113u ? 0u : fp32 >> 13 & 0x3FFu);
    }
  }
  return bits;
}

struct Strided {
  std::vector<std::uint32_t> wide;
  std::vector<std::uint16_t> narrow;
  ConstMatrix view;
};

Strided make(HighPrecision type, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
             std::int64_t column_stride) {
  Strided matrix;
  const std::size_t size =
      static_cast<std::size_t>(1 + std::max<std::int64_t>(0, rows - 1) * row_stride +
                               std::max<std::int64_t>(0, columns - 1) * column_stride);
  matrix.wide = random_bits(type, size, static_cast<unsigned>(rows * 131 + columns));
  matrix.narrow.assign(matrix.wide.begin(), matrix.wide.end());
  const void* data = type == HighPrecision::kFloat32 ? static_cast<const void*>(matrix.wide.data())
                                                     : matrix.narrow.data();
  matrix.view = {data, type, rows, columns, row_stride, column_stride};
  return matrix;
}

double element(const Strided& matrix, std::int64_t m, std::int64_t k) {
  const std::size_t at =
      static_cast<std::size_t>(m * matrix.view.row_stride + k * matrix.view.column_stride);
  return static_cast<double>(value_of(matrix.view.type, matrix.wide[at]));
}

TEST(ColumnSum, AgreesWithDoubleSums) {
  for (const HighPrecision type :
       {HighPrecision::kFloat32, HighPrecision::kBFloat16, HighPrecision::kFloat16}) {
    for (const std::int64_t rows : {0, 1, 15, 33, 256, 257, 1000}) {
      for (const std::int64_t columns : {0, 1, 15, 33, 64, 127, 192}) {
        const std::pair<std::int64_t, std::int64_t> strides[] = {
            {columns, 1}, {columns + 3, 1}, {1, rows + 1}, {0, 0}, {0, 1}, {2 * columns, 2}};
        for (const auto& [row_stride, column_stride] : strides) {
          const Strided x = make(type, rows, columns, row_stride, column_stride);
          std::vector<float> out(static_cast<std::size_t>(columns), NAN);
          column_sum(x.view, out.data(), 0, columns);
          for (std::int64_t k = 0; k < columns; ++k) {
            double sum = 0, magnitudes = 0;
            for (std::int64_t m = 0; m < rows; ++m) {
              sum += element(x, m, k);
              magnitudes += std::abs(element(x, m, k));
            }
            // An fp32 addition errs by 2^-24 of its result; no element is in more than
            // 256 + rows / 256 of them.
            const double bound = magnitudes * (256.0 + 4.0) * std::ldexp(1.0, -24);
            EXPECT_TRUE(std::abs(out[static_cast<std::size_t>(k)] - sum) <= bound)
                << rows << " x " << columns << " strides " << row_stride << ", " << column_stride
                << " column " << k;
          }
        }
      }
    }
  }
}

TEST(ColumnSum, AnySplitOfColumnsGivesTheSameBits) {
  const Strided x = make(HighPrecision::kBFloat16, 777, 200, 200, 1);
  std::vector<float> whole(200), split(200);
  column_sum(x.view, whole.data(), 0, 200);
  for (const std::int64_t width : {1, 7, 64, 65}) {
    for (std::int64_t k = 0; k < 200; k += width) {
      column_sum(x.view, split.data(), k, std::min<std::int64_t>(200, k + width));
    }
    EXPECT_EQ(whole, split) << width;
  }
}

TEST(ColumnSum, LongColumnsKeepTheirPrecision) {
  // 2^20 ones plus a start of 2^24: one running fp32 sum would stay at 2^24.
  const std::int64_t rows = (std::int64_t{1} << 20) + 1;
  std::vector<float> values(static_cast<std::size_t>(rows), 1.0f);
  values[0] = 16777216.0f;
  const ConstMatrix x = {values.data(), HighPrecision::kFloat32, rows, 1, 1, 1};
  float out = 0;
  column_sum(x, &out, 0, 1);
  EXPECT_NEAR(out, 16777216.0 + 1048576.0, 512.0);  // the first run of 256 loses its ones
}

TEST(ColumnSum, NanAndInfStayInTheirColumn) {
  std::vector<float> values(3 * 70, 1.0f);
  values[1 * 70 + 5] = NAN;
  values[2 * 70 + 69] = INFINITY;
  const ConstMatrix x = {values.data(), HighPrecision::kFloat32, 3, 70, 70, 1};
  std::vector<float> out(70);
  column_sum(x, out.data(), 0, 70);
  for (std::size_t k = 0; k < 70; ++k) {
    if (k == 5) {
      EXPECT_TRUE(std::isnan(out[k]));
    } else if (k == 69) {
      EXPECT_EQ(out[k], INFINITY);
    } else {
      EXPECT_EQ(out[k], 3.0f);
    }
  }
}

}  // namespace
}  // namespace octavo::kernels::cpu
