#include "octavo/gemm/tiled_scales.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

// Against one element at a time, group by group.
namespace octavo {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::int64_t up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by * by; }

// Writes the (rows, columns) scales at `from` (row stride `stride`) as tiles to `out`.
void tile_one_by_one(const std::uint8_t* from, std::int64_t stride, std::int64_t rows,
                     std::int64_t columns, std::uint8_t* out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t tile = r / 128 * (up(columns, 4) / 4) + c / 4;
      out[tile * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4] = from[r * stride + c];
    }
  }
}

at::Tensor random_codes(at::IntArrayRef sizes) {
  at::manual_seed(1);
  return at::randint(1, 255, sizes, at::kByte).view(at::kFloat8_e8m0fnu);
}

Bytes bytes_of(const at::Tensor& codes) {
  const at::Tensor bytes = codes.contiguous().view(at::kByte);
  const auto* data = bytes.const_data_ptr<std::uint8_t>();
  return {data, data + bytes.numel()};
}

const std::vector<std::vector<std::int64_t>> kGroupSizes = {
    {130}, {0, 128, 1, 0, 300}, {5, 0, 0}, {0, 0}, {127, 129, 256}};

TEST(TiledScales, ByRows) {
  for (const auto& sizes : kGroupSizes) {
    for (std::int64_t past : {0, 7}) {
      for (std::int64_t columns : {1, 4, 6}) {
        const at::Tensor offs = at::tensor(sizes).cumsum(0, at::kInt);
        const std::int64_t m = offs[-1].item<std::int64_t>() + past;
        const at::Tensor scale = random_codes({m, columns}),
                         out = tiled_scales_by_rows(scale, offs);
        const std::int64_t c4 = up(columns, 4),
                           rows = up(m, 128) + 128 * static_cast<std::int64_t>(sizes.size());
        ASSERT_EQ(out.sizes(), at::IntArrayRef({rows, c4}));
        Bytes expected(static_cast<std::size_t>(rows * c4), 0), in = bytes_of(scale);
        std::int64_t from = 0, to = 0;
        for (std::int64_t size : sizes) {
          tile_one_by_one(in.data() + from * columns, columns, size, columns,
                          expected.data() + to * c4);
          from += size, to += up(size, 128);
        }
        const Bytes got = bytes_of(out);
        // Rows of no group lie behind the groups, where no product looks.
        EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + to * c4, got.begin()));
      }
    }
  }
}

TEST(TiledScales, ByColumns) {
  for (const auto& sizes : kGroupSizes) {
    for (std::int64_t past : {0, 5}) {
      for (std::int64_t n : {1, 128, 200}) {
        const at::Tensor ends = at::tensor(sizes).cumsum(0, at::kInt);
        const std::int64_t columns = ends[-1].item<std::int64_t>() + past;
        const at::Tensor scale = random_codes({n, columns}),
                         out = tiled_scales_by_columns(scale, ends);
        const std::int64_t n128 = up(n, 128);
        ASSERT_EQ(out.size(0), n128);
        Bytes expected(static_cast<std::size_t>(out.numel()), 0), in = bytes_of(scale);
        std::int64_t from = 0, to = 0;
        for (std::int64_t size : sizes) {
          tile_one_by_one(in.data() + from, columns, n, size, expected.data() + to * n128);
          from += size, to += up(size, 4);
        }
        const Bytes got = bytes_of(out);
        EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + to * n128, got.begin()));
      }
    }
  }
}

TEST(TiledScales, OfExperts) {
  for (const auto& [n, c] : {std::pair<std::int64_t, std::int64_t>{128, 4}, {300, 7}, {1, 1}}) {
    const at::Tensor scale = random_codes({3, n, c}), out = tiled_scales_of_experts(scale);
    const std::int64_t size = up(n, 128) * up(c, 4);
    ASSERT_EQ(out.sizes(), at::IntArrayRef({3, size}));
    Bytes expected(static_cast<std::size_t>(3 * size), 0), in = bytes_of(scale);
    for (std::int64_t e = 0; e < 3; ++e) {
      tile_one_by_one(in.data() + e * n * c, c, n, c, expected.data() + e * size);
    }
    EXPECT_EQ(bytes_of(out), expected);
  }
}

}  // namespace
}  // namespace octavo
