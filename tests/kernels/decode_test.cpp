#include "octavo/kernels/cpu/decode.h"

#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "octavo/formats/codec.h"
#include "octavo/formats/e8m0.h"
#include "tests/kernels/each_target.h"

namespace octavo::kernels {
namespace {

constexpr float kUnwritten = 12345.0f;

// Bytes that are all different from their neighbours; specials included.
std::vector<std::uint8_t> some_bytes(std::int64_t size, int seed) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::uint8_t>(i * 37 + seed * 101 + (i >> 8));
  }
  return bytes;
}

// Every byte at every position of a step, so next to specials and without them.
TEST(Decode, EveryByteIsTheCodecs) {
  for_each_target([](const std::string& target) {
    for (Format format : kAllFormats) {
      for (int byte = 0; byte < 256; ++byte) {
        const std::vector<std::uint8_t> data(77, static_cast<std::uint8_t>(byte));
        std::vector<float> out(77, kUnwritten);
        decode_rows({.data = data.data(),
                     .row_stride = 77,
                     .columns = 77,
                     .format = format,
                     .out = out.data(),
                     .out_row_stride = 77},
                    0, 1);
        for (float value : out) {
          ASSERT_EQ(bits(value), bits(decode(format, data[0])))
              << target << " " << name(format) << " byte " << byte;
        }
      }
    }
  });
}

TEST(Decode, AnyLengthAndNothingOutsideIt) {
  for_each_target([](const std::string& target) {
    for (Format format : kAllFormats) {
      for (std::int64_t size = 0; size <= 130; ++size) {
        const auto data = some_bytes(size, 3);
        std::vector<float> out(static_cast<std::size_t>(size) + 2, kUnwritten);
        decode_rows({.data = data.data(),
                     .row_stride = size,
                     .columns = size,
                     .format = format,
                     .out = out.data() + 1,
                     .out_row_stride = size},
                    0, 1);
        EXPECT_EQ(out.front(), kUnwritten);
        EXPECT_EQ(out.back(), kUnwritten) << target << " size " << size;
        for (std::int64_t i = 0; i < size; ++i) {
          ASSERT_EQ(bits(out[i + 1]), bits(decode(format, data[i])))
              << target << " " << name(format) << " size " << size << " at " << i;
        }
      }
    }
  });
}

struct BlockSize {
  std::int64_t rows, columns;
};

// Rows of a padded matrix, a range of them, scales in both orders, fp32 and e8m0.
TEST(Decode, ScalesOfBlocksInStridedMatrices) {
  const std::int64_t kRows = 7, kColumns = 131, kStride = 140;
  const auto data = some_bytes(kRows * kStride, 5);
  for_each_target([&](const std::string& target) {
    for (Format format : kAllFormats) {
      for (BlockSize block : {BlockSize{1, 32}, {1, 128}, {3, 131}, {7, 1}, {2, 50}, {1, 1}}) {
        for (ScaleKind kind : {ScaleKind::kFloat, ScaleKind::kE8M0}) {
          const std::int64_t scale_rows = (kRows + block.rows - 1) / block.rows;
          const std::int64_t scale_columns = (kColumns + block.columns - 1) / block.columns;
          const std::int64_t count = scale_rows * scale_columns;
          std::vector<float> scales(static_cast<std::size_t>(count));
          std::vector<std::uint8_t> codes(static_cast<std::size_t>(count));
          for (std::int64_t i = 0; i < count; ++i) {
            scales[i] = 0.3f + 0.01f * static_cast<float>(i);
            codes[i] = static_cast<std::uint8_t>(i * 53);  // 0 and 255 among them
          }
          if (count > 2) scales[2] = std::bit_cast<float>(0x7FC00000u);
          const bool column_major = block.columns > 32;
          std::vector<float> out(static_cast<std::size_t>(kRows * kColumns), kUnwritten);
          decode_rows({.data = data.data(),
                       .row_stride = kStride,
                       .columns = kColumns,
                       .format = format,
                       .out = out.data(),
                       .out_row_stride = kColumns,
                       .scale_kind = kind,
                       .scale = kind == ScaleKind::kFloat ? static_cast<const void*>(scales.data())
                                                          : codes.data(),
                       .scale_row_stride = column_major ? 1 : scale_columns,
                       .scale_column_stride = column_major ? scale_rows : 1,
                       .block_rows = block.rows,
                       .block_columns = block.columns},
                      1, 6);
          for (std::int64_t r = 0; r < kRows; ++r) {
            for (std::int64_t c = 0; c < kColumns; ++c) {
              const float got = out[r * kColumns + c];
              if (r < 1 || r >= 6) {
                ASSERT_EQ(got, kUnwritten) << "row " << r << " was not asked for";
                continue;
              }
              const std::int64_t i = r / block.rows, j = c / block.columns;
              const std::int64_t at = column_major ? j * scale_rows + i : i * scale_columns + j;
              const float scale = kind == ScaleKind::kFloat ? scales[at] : decode_e8m0(codes[at]);
              const float expected = decode(format, data[r * kStride + c]) * scale;
              if (expected != expected) {  // which NaN survives a product is the processor's choice
                ASSERT_TRUE(got != got) << target << " " << name(format) << " (" << r << ", " << c;
              } else {
                ASSERT_EQ(bits(got), bits(expected))
                    << target << " " << name(format) << " block " << block.rows << "x"
                    << block.columns << " (" << r << ", " << c << ") byte "
                    << int{data[r * kStride + c]} << " scale " << scale;
              }
            }
          }
        }
      }
    }
  });
}

TEST(Decode, NoRowsTouchNothing) {
  decode_rows({}, 0, 0);
  decode_rows({.columns = 0}, 0, 5);
}

}  // namespace
}  // namespace octavo::kernels
