#include "octavo/kernels/gpu/quantize_resident.h"

#include "operands.h"

namespace octavo::gpu::testing {
namespace {

struct Wanted {
  bool rows, transposed;
  bool rows_per_row, transposed_per_row;
};
constexpr Wanted kWanted[] = {{true, true, true, true},   {true, true, false, false},
                              {true, true, true, false},  {true, true, false, true},
                              {true, false, false, true}, {false, true, true, true},
                              {false, true, true, false}, {true, false, true, true}};

// A layout's bytes and scales by definition.
void expect_layout(const Operand& x, bool transposed, bool per_row, Format format,
                   ScaleRounding rounding, const std::vector<std::uint8_t>& data,
                   const std::vector<float>& scales) {
  const std::int64_t R = transposed ? x.columns() : x.rows();
  const std::int64_t C = transposed ? x.rows() : x.columns();
  const auto at = [&](std::int64_t r, std::int64_t c) {
    return transposed ? x.at(c, r) : x.at(r, c);
  };
  std::vector<float> amax(per_row ? R : 1);
  for (std::int64_t r = 0; r < R; ++r) {
    float& own = amax[per_row ? r : 0];
    for (std::int64_t c = 0; c < C; ++c) own = amax_of(own, at(r, c));
  }
  std::vector<float> expected_scales;
  std::vector<std::uint8_t> expected(R * C);
  for (std::size_t i = 0; i < amax.size(); ++i) {
    expected_scales.push_back(scale_of(inv_scale_of(amax[i], format, rounding)));
  }
  for (std::int64_t r = 0; r < R; ++r) {
    const float inv = inv_scale_of(amax[per_row ? r : 0], format, rounding);
    for (std::int64_t c = 0; c < C; ++c) {
      expected[r * C + c] = quantize_element(at(r, c), inv, format);
    }
  }
  expect_same(data, expected, C, transposed ? "transposed" : "rows");
  expect_same(scales, expected_scales, transposed ? "transposed scales" : "rows scales");
}

// False where the kernel does not take this operand.
bool check(const Operand& x, const Wanted& wanted, Format format, ScaleRounding rounding) {
  const std::int64_t M = x.rows(), K = x.columns();
  const std::int64_t row_scales = wanted.rows_per_row ? M : 1;
  const std::int64_t column_scales = wanted.transposed_per_row ? K : 1;
  DeviceBuffer q(M * K), qt(M * K), s(4 * row_scales), st(4 * column_scales);
  QuantizeResidentArgs args{.x = x.matrix(), .format = format, .rounding = rounding};
  if (wanted.rows) args.rows = {q.get<std::uint8_t>(), s.get<float>(), wanted.rows_per_row};
  if (wanted.transposed) {
    args.transposed = {qt.get<std::uint8_t>(), st.get<float>(), wanted.transposed_per_row};
  }
  if (!fits_resident(args)) return false;
  DeviceBuffer partial(4 * resident_partials(args.x));  // poisoned: nothing may rely on zeros
  args.partial = partial.get<float>();
  quantize_resident(args, nullptr);
  partial.download<float>();  // its guards
  if (wanted.rows) {
    expect_layout(x, false, wanted.rows_per_row, format, rounding, q.download<std::uint8_t>(),
                  s.download<float>());
  }
  if (wanted.transposed) {
    expect_layout(x, true, wanted.transposed_per_row, format, rounding, qt.download<std::uint8_t>(),
                  st.download<float>());
  }
  return true;
}

TEST(GpuQuantizeResident, EqualsAScalarLoop) {
  OCTAVO_REQUIRE_GPU();
  int i = 0, taken = 0;
  for_all_operands([&](DType dtype, const Size& size, View view, Values values) {
    const Operand x(dtype, size.rows, size.columns, view, values);
    for (Format format : kAllFormats) {
      for (const Wanted& wanted : kWanted) {
        SCOPED_TRACE(describe(dtype, size, view, values) + " " + std::string(name(format)) +
                     " pair " + std::to_string(&wanted - kWanted));
        taken +=
            check(x, wanted, format, i++ % 2 ? ScaleRounding::kPowerOfTwo : ScaleRounding::kNone);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  });
  EXPECT_GT(taken, 500);
}

TEST(GpuQuantizeResident, ManyTiles) {
  OCTAVO_REQUIRE_GPU();
  for (const Size& size : {Size{2048, 2048}, {528, 8208}, {8448, 1024}}) {
    const Operand x(DType::kBF16, size.rows, size.columns, View::kContiguous, Values::kAdversarial);
    for (const Wanted& wanted : kWanted) {
      EXPECT_TRUE(check(x, wanted, Format::kE4M3FN, ScaleRounding::kNone));
    }
  }
}

TEST(GpuQuantizeResident, TakesWhatFitsOnly) {
  OCTAVO_REQUIRE_GPU();
  const auto fits = [](std::int64_t rows, std::int64_t columns, Format format) {
    QuantizeResidentArgs args;
    args.x = {nullptr, DType::kBF16, rows, columns, columns, 1};
    args.format = format;
    return fits_resident(args);
  };
  EXPECT_TRUE(fits(128, 128, Format::kE4M3FN));
  EXPECT_FALSE(fits(0, 128, Format::kE4M3FN));
  EXPECT_FALSE(fits(120, 128, Format::kE4M3FN));
  EXPECT_FALSE(fits(128, 124, Format::kE4M3FN));
  EXPECT_FALSE(fits(1 << 20, 1 << 12, Format::kE4M3FN));
}

}  // namespace
}  // namespace octavo::gpu::testing
