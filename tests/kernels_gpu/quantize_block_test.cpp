#include "octavo/kernels/gpu/quantize_block.h"

#include "operands.h"

namespace octavo::gpu::testing {
namespace {

// Both layouts by a scalar loop over blocks. block_m x block_k are seen from x.
void reference(const Operand& x, std::int64_t block_m, std::int64_t block_k, Format format,
               ScaleRounding rounding, std::vector<float>& scale,
               std::vector<std::uint8_t>& bytes) {
  const std::int64_t M = x.rows(), K = x.columns();
  const std::int64_t blocks_k = (K + block_k - 1) / block_k;
  scale.assign((M + block_m - 1) / block_m * blocks_k, 0.0f);
  bytes.assign(M * K, 0);
  for (std::int64_t m0 = 0; m0 < M; m0 += block_m) {
    for (std::int64_t k0 = 0; k0 < K; k0 += block_k) {
      float amax = 0.0f;
      const std::int64_t m1 = std::min(M, m0 + block_m), k1 = std::min(K, k0 + block_k);
      for (std::int64_t m = m0; m < m1; ++m) {
        for (std::int64_t k = k0; k < k1; ++k) amax = amax_of(amax, x.at(m, k));
      }
      const float inv = inv_scale_of(amax, format, rounding);
      scale[m0 / block_m * blocks_k + k0 / block_k] = scale_of(inv);
      for (std::int64_t m = m0; m < m1; ++m) {
        for (std::int64_t k = k0; k < k1; ++k) {
          bytes[m * K + k] = quantize_element(x.at(m, k), inv, format);
        }
      }
    }
  }
}

template <class T>
std::vector<T> transpose(const std::vector<T>& a, std::int64_t rows, std::int64_t columns) {
  std::vector<T> b(a.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) b[c * rows + r] = a[r * columns + c];
  }
  return b;
}

void expect_blocks(const Operand& x, BlockShape shape, Format format, ScaleRounding rounding,
                   bool rows_wanted, bool transposed_wanted) {
  const std::int64_t M = x.rows(), K = x.columns();
  const std::int64_t mb = (M + 127) / 128, kb = (K + 127) / 128;
  const bool square = shape == BlockShape::k128x128;
  std::vector<float> row_scale, column_scale;
  std::vector<std::uint8_t> rows, columns;
  reference(x, square ? 128 : 1, 128, format, rounding, row_scale, rows);
  reference(x, 128, square ? 128 : 1, format, rounding, column_scale, columns);
  DeviceBuffer q(M * K), qt(M * K), rs(4 * row_scale.size()), cs(4 * column_scale.size());
  QuantizeBlockArgs args{.x = x.matrix(), .shape = shape, .format = format, .rounding = rounding};
  // As the products want them: 1x128 scales column-major, 128x128 scales row-major.
  if (rows_wanted) {
    args.rows = {q.get<std::uint8_t>(), rs.get<float>(), square ? kb : 1, square ? 1 : M};
  }
  if (transposed_wanted) {
    args.transposed = {qt.get<std::uint8_t>(), cs.get<float>(), square ? mb : 1, square ? 1 : K};
  }
  quantize_block(args, nullptr);
  if (rows_wanted) {
    expect_same(q.download<std::uint8_t>(), rows, K, "rows");
    expect_same(rs.download<float>(), square ? row_scale : transpose(row_scale, M, kb),
                "row scale");
  }
  if (transposed_wanted) {
    // Seen from x the scales are (mb, K); column-major of (K, mb) is the same memory.
    expect_same(qt.download<std::uint8_t>(), transpose(columns, M, K), M, "transposed");
    expect_same(cs.download<float>(), square ? transpose(column_scale, mb, kb) : column_scale,
                "column scale");
  }
}

TEST(GpuQuantizeBlock, EqualsAScalarLoop) {
  OCTAVO_REQUIRE_GPU();
  int i = 0;
  for_all_operands([&](DType dtype, const Size& size, View view, Values values) {
    const Operand x(dtype, size.rows, size.columns, view, values);
    for (Format format : kAllFormats) {
      for (BlockShape shape : {BlockShape::k1x128, BlockShape::k128x128}) {
        SCOPED_TRACE(describe(dtype, size, view, values) + " " + std::string(name(format)) +
                     (shape == BlockShape::k1x128 ? " 1x128" : " 128x128"));
        const auto rounding = i++ % 3 ? ScaleRounding::kNone : ScaleRounding::kPowerOfTwo;
        expect_blocks(x, shape, format, rounding, true, true);
        if (i % 5 == 0) expect_blocks(x, shape, format, rounding, true, false);
        if (i % 5 == 1) expect_blocks(x, shape, format, rounding, false, true);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

// Blocks of 128x1 of a layout, whose scales lie (ceil(R/128), C), beside 1x128 or 128x1 of the
// other.
TEST(GpuQuantizeBlock, BlocksAcrossALayout) {
  OCTAVO_REQUIRE_GPU();
  for (const Size& size : {Size{1, 7}, Size{144, 264}, Size{300, 301}, Size{128, 128}}) {
    const std::int64_t M = size.rows, K = size.columns, mb = (M + 127) / 128, kb = (K + 127) / 128;
    for (Values values : {Values::kNormal, Values::kAdversarial}) {
      const Operand x(DType::kBF16, M, K, View::kContiguous, values);
      std::vector<float> by_row, by_column;
      std::vector<std::uint8_t> row_bytes, column_bytes;
      reference(x, 1, 128, Format::kE4M3FN, ScaleRounding::kNone, by_row, row_bytes);
      reference(x, 128, 1, Format::kE4M3FN, ScaleRounding::kNone, by_column, column_bytes);
      for (const auto& [rows_across, transposed_across] :
           {std::pair{true, false}, {false, true}, {true, true}}) {
        SCOPED_TRACE(describe(DType::kBF16, size, View::kContiguous, values) + " " +
                     std::to_string(rows_across) + std::to_string(transposed_across));
        DeviceBuffer q(M * K), qt(M * K);
        DeviceBuffer rs(4 * (rows_across ? mb * K : M * kb));
        DeviceBuffer cs(4 * (transposed_across ? kb * M : K * mb));
        quantize_block({.x = x.matrix(),
                        .rows = {q.get<std::uint8_t>(), rs.get<float>(), rows_across ? K : kb, 1, 0,
                                 rows_across},
                        .transposed = {qt.get<std::uint8_t>(), cs.get<float>(),
                                       transposed_across ? M : mb, 1, 0, transposed_across}},
                       nullptr);
        expect_same(q.download<std::uint8_t>(), rows_across ? column_bytes : row_bytes, K, "rows");
        expect_same(rs.download<float>(), rows_across ? by_column : by_row, "row scales");
        expect_same(qt.download<std::uint8_t>(),
                    transpose(transposed_across ? row_bytes : column_bytes, M, K), M, "transposed");
        expect_same(cs.download<float>(),
                    transposed_across ? transpose(by_row, M, kb) : transpose(by_column, mb, K),
                    "column scales");
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace octavo::gpu::testing
