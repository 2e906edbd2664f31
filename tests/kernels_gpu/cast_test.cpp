#include "octavo/kernels/gpu/cast.h"

#include "octavo/kernels/gpu/amax.h"
#include "operands.h"

namespace octavo::gpu::testing {
namespace {

CastScales scales_of(bool lines) { return lines ? CastScales::kLines : CastScales::kTensor; }

// Runs cast() with the given amaxes and compares bytes and scales with octavo/formats.
void expect_cast(const Operand& x, Format format, ScaleRounding rounding,
                 const std::vector<float>& row_amax, const std::vector<float>& column_amax,
                 bool rows_wanted, bool transposed_wanted) {
  const std::int64_t M = x.rows(), K = x.columns();
  const bool per_row = row_amax.size() == static_cast<std::size_t>(M);
  const bool per_column = column_amax.size() == static_cast<std::size_t>(K);
  std::vector<std::uint8_t> rows(M * K), transposed(K * M);
  std::vector<float> row_scale, column_scale, row_inv, column_inv;
  for (float a : row_amax) {
    row_inv.push_back(inv_scale_of(a, format, rounding));
    row_scale.push_back(scale_of(row_inv.back()));
  }
  for (float a : column_amax) {
    column_inv.push_back(inv_scale_of(a, format, rounding));
    column_scale.push_back(scale_of(column_inv.back()));
  }
  for (std::int64_t m = 0; m < M; ++m) {
    for (std::int64_t k = 0; k < K; ++k) {
      rows[m * K + k] = quantize_element(x.at(m, k), row_inv[per_row ? m : 0], format);
      transposed[k * M + m] = quantize_element(x.at(m, k), column_inv[per_column ? k : 0], format);
    }
  }
  DeviceBuffer q(rows.size()), qt(transposed.size()), ra(4 * row_amax.size()),
      ca(4 * column_amax.size()), rs(4 * row_amax.size()), cs(4 * column_amax.size());
  ra.upload(row_amax.data());
  ca.upload(column_amax.data());
  CastArgs args{.x = x.matrix(), .format = format, .rounding = rounding};
  if (rows_wanted)
    args.rows = {q.get<std::uint8_t>(), ra.get<float>(), scales_of(per_row), rs.get<float>()};
  if (transposed_wanted) {
    args.transposed = {qt.get<std::uint8_t>(), ca.get<float>(), scales_of(per_column),
                       cs.get<float>()};
  }
  cast(args, nullptr);
  if (rows_wanted) {
    expect_same(q.download<std::uint8_t>(), rows, K, "rows");
    expect_same(rs.download<float>(), row_scale, "row scale");
  }
  if (transposed_wanted) {
    expect_same(qt.download<std::uint8_t>(), transposed, M, "transposed");
    expect_same(cs.download<float>(), column_scale, "column scale");
  }
}

std::vector<float> row_amaxes(const Operand& x) {
  std::vector<float> amax(x.rows(), 0.0f);
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    for (std::int64_t k = 0; k < x.columns(); ++k) amax[m] = amax_of(amax[m], x.at(m, k));
  }
  return amax;
}

std::vector<float> column_amaxes(const Operand& x) {
  std::vector<float> amax(x.columns(), 0.0f);
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    for (std::int64_t k = 0; k < x.columns(); ++k) amax[k] = amax_of(amax[k], x.at(m, k));
  }
  return amax;
}

TEST(GpuCast, RowAndColumnScalesEqualTheCpuCodec) {
  OCTAVO_REQUIRE_GPU();
  int i = 0;
  for_all_operands([&](DType dtype, const Size& size, View view, Values values) {
    const Operand x(dtype, size.rows, size.columns, view, values);
    const std::vector<float> rows = row_amaxes(x), columns = column_amaxes(x);
    for (Format format : kAllFormats) {
      SCOPED_TRACE(describe(dtype, size, view, values) + " " + std::string(name(format)));
      const auto rounding = i++ % 2 ? ScaleRounding::kPowerOfTwo : ScaleRounding::kNone;
      expect_cast(x, format, rounding, rows, columns, true, true);
      if (i % 5 == 0) expect_cast(x, format, rounding, rows, columns, true, false);
      if (i % 5 == 1) expect_cast(x, format, rounding, rows, columns, false, true);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(GpuCast, TensorScalesAndMixedGranularities) {
  OCTAVO_REQUIRE_GPU();
  for (DType dtype : kDTypes) {
    for (const Size& size : {Size{144, 264}, Size{33, 127}}) {
      const Operand x(dtype, size.rows, size.columns, View::kContiguous, Values::kNormal);
      float amax = 0.0f;
      for (float a : row_amaxes(x)) amax = amax_of(amax, a);
      for (Format format : kAllFormats) {
        expect_cast(x, format, ScaleRounding::kNone, {amax}, {amax}, true, true);
        expect_cast(x, format, ScaleRounding::kPowerOfTwo, row_amaxes(x), {amax}, true, true);
        expect_cast(x, format, ScaleRounding::kNone, {amax}, column_amaxes(x), true, true);
      }
    }
  }
}

// A cast alone: amax = max makes inv_scale exactly 1.
TEST(GpuCast, EverySixteenBitPattern) {
  OCTAVO_REQUIRE_GPU();
  for (DType dtype : {DType::kBF16, DType::kFP16}) {
    std::vector<std::uint16_t> bits(65536);
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
    DeviceBuffer x(2 * bits.size());
    x.upload(bits.data());
    for (Format format : kAllFormats) {
      for (float amax : {limits(format).max, 1.0f, 3.0e-5f, 7.0e4f, 1.0e30f, 1.0e-20f}) {
        DeviceBuffer q(65536), qt(65536), a(4);
        a.upload(&amax);
        const Matrix matrix{x.get(), dtype, 256, 256, 256, 1};
        cast({.x = matrix,
              .rows = {q.get<std::uint8_t>(), a.get<float>(), CastScales::kTensor, nullptr},
              .transposed = {qt.get<std::uint8_t>(), a.get<float>(), CastScales::kTensor, nullptr},
              .format = format},
             nullptr);
        const auto rows = q.download<std::uint8_t>(), transposed = qt.download<std::uint8_t>();
        const float inv_scale = inv_scale_of(amax, format, ScaleRounding::kNone);
        for (std::size_t i = 0; i < bits.size(); ++i) {
          const int expected = quantize_element(to_float(dtype, bits[i]), inv_scale, format);
          ASSERT_EQ(int{rows[i]}, expected) << name(format) << " bits " << i << " amax " << amax;
          ASSERT_EQ(int{transposed[i % 256 * 256 + i / 256]}, expected) << name(format) << " " << i;
        }
      }
    }
  }
}

// Every value half way between two neighbours of a format, and the floats beside it.
TEST(GpuCast, EveryMidpointInFp32) {
  OCTAVO_REQUIRE_GPU();
  for (Format format : kAllFormats) {
    std::vector<float> values;
    for (int byte = 0; byte < limits(format).max_byte; ++byte) {
      const double low = decode(format, static_cast<std::uint8_t>(byte));
      const double high = decode(format, static_cast<std::uint8_t>(byte + 1));
      const float middle = static_cast<float>((low + high) / 2);
      for (float v : {static_cast<float>(low), middle, std::nextafter(middle, 0.0f),
                      std::nextafter(middle, INFINITY)}) {
        values.push_back(v);
        values.push_back(-v);
      }
    }
    for (float v : {464.0f, 464.00003f, 480.0f, 61439.996f, 61440.0f, 1e38f, INFINITY, NAN, 1e-45f,
                    247.99998f, 248.0f, 1.0625001f, 1.1250001f}) {
      values.push_back(v);
      values.push_back(-v);
    }
    std::mt19937 random(7);
    while (values.size() < 16384) values.push_back(internal::float_of(random()));
    DeviceBuffer x(4 * values.size()), q(values.size()), a(4);
    x.upload(values.data());
    const float amax = limits(format).max;
    a.upload(&amax);
    cast({.x = {x.get(), DType::kFP32, 128, 128, 128, 1},
          .rows = {q.get<std::uint8_t>(), a.get<float>(), CastScales::kTensor, nullptr},
          .format = format},
         nullptr);
    const auto bytes = q.download<std::uint8_t>();
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      ASSERT_EQ(int{bytes[i]}, int{encode(format, values[i])}) << name(format) << " " << values[i];
    }
  }
}

TEST(GpuCast, EmptyOperandsHaveTheScalesOfTheirAmaxes) {
  OCTAVO_REQUIRE_GPU();
  DeviceBuffer amax(4 * 5), scale(4 * 5), data(16);
  const std::vector<float> amaxes{0.0f, 1.0f, 448.0f, INFINITY, NAN};
  amax.upload(amaxes.data());
  cast({.x = {nullptr, DType::kBF16, 5, 0, 0, 1},
        .rows = {data.get<std::uint8_t>(), amax.get<float>(), CastScales::kLines,
                 scale.get<float>()}},
       nullptr);
  std::vector<float> expected;
  for (float a : amaxes) {
    expected.push_back(scale_of(inv_scale_of(a, Format::kE4M3FN, ScaleRounding::kNone)));
  }
  expect_same(scale.download<float>(), expected, "scale");
}

// Rows by themselves with a scale a column: a path of its own where vectors go.
TEST(GpuCast, RowsAloneScaledByColumns) {
  OCTAVO_REQUIRE_GPU();
  for_all_operands([&](DType dtype, const Size& size, View view, Values values) {
    const std::int64_t M = size.rows, K = size.columns;
    const Operand x(dtype, M, K, view, values);
    const std::vector<float> amax = column_amaxes(x);
    DeviceBuffer a(4 * K), q(M * K), scale(4 * K);
    a.upload(amax.data());
    for (Format format : {Format::kE4M3FN, Format::kE5M2, Format::kE4M3FNUZ}) {
      SCOPED_TRACE(describe(dtype, size, view, values) + " " + std::string(name(format)));
      cast(
          {.x = x.matrix(),
           .rows = {q.get<std::uint8_t>(), a.get<float>(), CastScales::kAcross, scale.get<float>()},
           .format = format,
           .rounding = ScaleRounding::kPowerOfTwo},
          nullptr);
      std::vector<std::uint8_t> bytes(M * K);
      std::vector<float> scales;
      for (std::int64_t k = 0; k < K; ++k) {
        const float inv_scale = inv_scale_of(amax[k], format, ScaleRounding::kPowerOfTwo);
        scales.push_back(scale_of(inv_scale));
        for (std::int64_t m = 0; m < M; ++m) {
          bytes[m * K + k] = quantize_element(x.at(m, k), inv_scale, format);
        }
      }
      expect_same(q.download<std::uint8_t>(), bytes, K, "bytes");
      expect_same(scale.download<float>(), scales, "scales");
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

// Scales that run along the other axis of a layout, beside each kind of the other layout.
TEST(GpuCast, ScalesAcrossALayout) {
  OCTAVO_REQUIRE_GPU();
  constexpr CastScales kAll[] = {CastScales::kTensor, CastScales::kLines, CastScales::kAcross};
  for (const Size& size : {Size{144, 264}, Size{33, 127}}) {
    const std::int64_t M = size.rows, K = size.columns;
    const Operand x(DType::kBF16, M, K, View::kContiguous, Values::kAdversarial);
    const std::vector<float> of_row = row_amaxes(x), of_column = column_amaxes(x), whole{3.0f};
    DeviceBuffer row(4 * M), column(4 * K), tensor(4);
    row.upload(of_row.data()), column.upload(of_column.data()), tensor.upload(whole.data());
    for (CastScales rows : kAll) {
      for (CastScales transposed : kAll) {
        if (rows != CastScales::kAcross && transposed != CastScales::kAcross) continue;
        SCOPED_TRACE(describe(DType::kBF16, size, View::kContiguous, Values::kAdversarial) + " " +
                     std::to_string(static_cast<int>(rows)) + "/" +
                     std::to_string(static_cast<int>(transposed)));
        DeviceBuffer q(M * K), qt(M * K), s(4 * (M + K)), st(4 * (M + K));
        const auto layout = [&](CastScales scales, bool by_row, DeviceBuffer& data,
                                DeviceBuffer& scale) -> CastLayout {
          const DeviceBuffer& amax = scales == CastScales::kTensor ? tensor : by_row ? row : column;
          return {data.get<std::uint8_t>(), amax.get<float>(), scales, scale.get<float>()};
        };
        const bool rows_by_row = rows == CastScales::kLines;
        const bool transposed_by_row = transposed == CastScales::kAcross;
        cast({.x = x.matrix(),
              .rows = layout(rows, rows_by_row, q, s),
              .transposed = layout(transposed, transposed_by_row, qt, st)},
             nullptr);
        const auto expect_layout = [&](CastScales scales, bool by_row, bool turned,
                                       const DeviceBuffer& data, const DeviceBuffer& scale) {
          const std::vector<float>& amax = scales == CastScales::kTensor ? whole
                                           : by_row                      ? of_row
                                                                         : of_column;
          const auto inv = [&](std::int64_t m, std::int64_t k) {
            const std::int64_t i = scales == CastScales::kTensor ? 0 : by_row ? m : k;
            return inv_scale_of(amax[i], Format::kE4M3FN, ScaleRounding::kNone);
          };
          std::vector<std::uint8_t> expected(M * K);
          for (std::int64_t m = 0; m < M; ++m) {
            for (std::int64_t k = 0; k < K; ++k) {
              expected[turned ? k * M + m : m * K + k] =
                  quantize_element(x.at(m, k), inv(m, k), Format::kE4M3FN);
            }
          }
          expect_same(data.download<std::uint8_t>(), expected, turned ? M : K, "bytes");
          std::vector<float> actual = scale.download<float>(), scales_expected;
          actual.resize(amax.size());
          for (float a : amax) {
            scales_expected.push_back(
                scale_of(inv_scale_of(a, Format::kE4M3FN, ScaleRounding::kNone)));
          }
          expect_same(actual, scales_expected, "scales");
        };
        expect_layout(rows, rows_by_row, false, q, s);
        expect_layout(transposed, transposed_by_row, true, qt, st);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace octavo::gpu::testing
