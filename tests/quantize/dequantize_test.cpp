#include "octavo/quantize/dequantize.h"

#include <gtest/gtest.h>

#include <bit>

#include "octavo/kernels/counter.h"
#include "tests/gemm/operands.h"

namespace octavo {
namespace {

using testing::bytes_of;
using testing::random_operand;
using testing::scale_at;

constexpr Granularity kAll[] = {Granularity::tensorwise(),  Granularity::rowwise(),
                                Granularity::colwise(),     Granularity::block_1x128(),
                                Granularity::block_128x1(), Granularity::block_128x128(),
                                Granularity::mx_1x32()};

struct Sizes {
  std::int64_t rows, columns;
};
constexpr Sizes kSizes[] = {{1, 1}, {15, 33}, {33, 127}, {130, 129}, {257, 31}, {3, 300}};

TEST(Dequantize, EveryElementIsDataTimesScale) {
  for (Format format : kAllFormats) {
    for (const Granularity& granularity : kAll) {
      if (granularity.mx && flavour_of(format) != Flavour::kOCP) continue;
      for (const Sizes& size : kSizes) {
        const auto matrix = random_operand(size.rows, size.columns, format, granularity, 7, 1.3);
        const at::Tensor out = dequantize(matrix), bare = decode_unscaled(matrix);
        ASSERT_EQ(out.sizes(), at::IntArrayRef({size.rows, size.columns}));
        ASSERT_EQ(out.scalar_type(), at::kFloat);
        for (std::int64_t r = 0; r < size.rows; ++r) {
          for (std::int64_t c = 0; c < size.columns; ++c) {
            const std::int64_t i = r * size.columns + c;
            const float value = decode(format, bytes_of(matrix)[i]);
            // fp32 scales are exact in fp32, so this is the one rounding of the product.
            const float expected = value * static_cast<float>(scale_at(matrix, r, c));
            ASSERT_EQ(bare.const_data_ptr<float>()[i], value);
            ASSERT_EQ(std::bit_cast<std::uint32_t>(out.const_data_ptr<float>()[i]),
                      std::bit_cast<std::uint32_t>(expected))
                << name(format) << " " << to_string(granularity) << " (" << r << ", " << c << ")";
          }
        }
      }
    }
  }
}

TEST(Dequantize, EmptyMatrices) {
  for (const Granularity& granularity : kAll) {
    for (const Sizes& size : {Sizes{0, 0}, {0, 40}, {40, 0}}) {
      const auto matrix = random_operand(size.rows, size.columns, Format::kE4M3FN, granularity, 1);
      EXPECT_EQ(dequantize(matrix).sizes(), at::IntArrayRef({size.rows, size.columns}));
    }
  }
}

// MX scales at the ends of e8m0: code 0 is 2^-127, 255 is NaN.
TEST(Dequantize, EndsOfE8M0) {
  auto matrix = random_operand(1, 96, Format::kE4M3FN, Granularity::mx_1x32(), 1);
  std::fill_n(bytes_of(matrix), 96, encode(Format::kE4M3FN, 1.0f));
  auto* codes = static_cast<std::uint8_t*>(matrix.scale.data_ptr());
  codes[0] = 0;
  codes[1] = 254;
  codes[2] = 255;
  const at::Tensor out = dequantize(matrix);
  EXPECT_EQ(out[0][0].item<float>(), std::ldexp(1.0f, -127));
  EXPECT_EQ(out[0][63].item<float>(), std::ldexp(1.0f, 127));
  EXPECT_TRUE(std::isnan(out[0][64].item<float>()));
}

TEST(Dequantize, CountsOneDecode) {
  const auto matrix = random_operand(700, 300, Format::kE4M3FN, Granularity::rowwise(), 1);
  const std::uint64_t before = kernels::counters().decode;
  dequantize(matrix);
  EXPECT_EQ(kernels::counters().decode - before, 1u);
}

TEST(Dequantize, ErrorsNameTheMatrix) {
  auto matrix = random_operand(4, 4, Format::kE4M3FN, Granularity::rowwise(), 1);
  matrix.scale = at::ones({4});
  try {
    dequantize(matrix);
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("matrix.scale: expected sizes [4, 1]"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace octavo
