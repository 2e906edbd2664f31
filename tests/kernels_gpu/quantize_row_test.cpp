#include "octavo/kernels/gpu/quantize_row.h"

#include "operands.h"

namespace octavo::gpu::testing {
namespace {

void expect_rows(const Operand& x, Format format, ScaleRounding rounding) {
  const std::int64_t M = x.rows(), K = x.columns();
  std::vector<std::uint8_t> data(M * K);
  std::vector<float> scale(M);
  for (std::int64_t m = 0; m < M; ++m) {
    float amax = 0.0f;
    for (std::int64_t k = 0; k < K; ++k) amax = amax_of(amax, x.at(m, k));
    const float inv = inv_scale_of(amax, format, rounding);
    scale[m] = scale_of(inv);
    for (std::int64_t k = 0; k < K; ++k)
      data[m * K + k] = quantize_element(x.at(m, k), inv, format);
  }
  DeviceBuffer q(M * K), s(4 * M);
  quantize_row({x.matrix(), q.get<std::uint8_t>(), s.get<float>(), format, rounding}, nullptr);
  expect_same(q.download<std::uint8_t>(), data, K, "rows");
  expect_same(s.download<float>(), scale, "scale");
}

TEST(GpuQuantizeRow, EqualsAScalarLoop) {
  OCTAVO_REQUIRE_GPU();
  int i = 0;
  for_all_operands([&](DType dtype, const Size& size, View view, Values values) {
    const Operand x(dtype, size.rows, size.columns, view, values);
    for (Format format : kAllFormats) {
      SCOPED_TRACE(describe(dtype, size, view, values) + " " + std::string(name(format)));
      expect_rows(x, format, i++ % 2 ? ScaleRounding::kPowerOfTwo : ScaleRounding::kNone);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

// Around the lengths where the kernel changes its number of threads and items.
TEST(GpuQuantizeRow, LongRows) {
  OCTAVO_REQUIRE_GPU();
  for (DType dtype : kDTypes) {
    for (std::int64_t K :
         {496, 512, 1024, 1040, 4096, 14336, 16384, 16400, 32768, 32784, 65536, 65552, 70001}) {
      SCOPED_TRACE(K);
      const Operand x(dtype, 3, K, View::kContiguous, Values::kAdversarial);
      expect_rows(x, Format::kE4M3FN, ScaleRounding::kNone);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(GpuQuantizeRow, EmptyRowsHaveTheScaleOfZero) {
  OCTAVO_REQUIRE_GPU();
  DeviceBuffer scale(4 * 3), data(16);
  quantize_row({{nullptr, DType::kFP16, 3, 0, 0, 1}, data.get<std::uint8_t>(), scale.get<float>()},
               nullptr);
  const float expected = scale_of(inv_scale_of(0.0f, Format::kE4M3FN, ScaleRounding::kNone));
  expect_same(scale.download<float>(), std::vector<float>(3, expected), "scale");
}

}  // namespace
}  // namespace octavo::gpu::testing
