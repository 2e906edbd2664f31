#include "octavo/kernels/gpu/quantize_mx.h"

#include "operands.h"

namespace octavo::gpu::testing {
namespace {

constexpr MxRounding kRoundings[] = {MxRounding::kRceil, MxRounding::kFloor, MxRounding::kCeil,
                                     MxRounding::kEven};

struct Layout {
  std::vector<std::uint8_t> data, codes;  // (R, C) and (R, ceil(C/32))
};

// One layout of R rows and C columns by a scalar loop; at(r, c) is its high-precision element.
template <class At>
Layout reference(std::int64_t R, std::int64_t C, Format format, MxRounding rounding, const At& at) {
  const std::int64_t blocks = (C + 31) / 32;
  Layout out{std::vector<std::uint8_t>(R * C), std::vector<std::uint8_t>(R * blocks)};
  for (std::int64_t r = 0; r < R; ++r) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t end = std::min(C, (b + 1) * 32);
      float amax = 0.0f;
      for (std::int64_t c = b * 32; c < end; ++c) amax = amax_of(amax, at(r, c));
      const std::uint8_t code = mx_code_of(amax, format, rounding);
      out.codes[r * blocks + b] = code;
      for (std::int64_t c = b * 32; c < end; ++c) {
        out.data[r * C + c] = quantize_element(at(r, c), inv_scale_e8m0(code), format);
      }
    }
  }
  return out;
}

// Undoes the 128x4 tiling by the published description: 32 rows of 16 bytes, four groups of rows.
std::vector<std::uint8_t> untiled(const std::vector<std::uint8_t>& tiled, std::int64_t R,
                                  std::int64_t blocks) {
  const std::int64_t tiles_across = (blocks + 3) / 4, tiles_down = (R + 127) / 128;
  EXPECT_EQ(static_cast<std::int64_t>(tiled.size()), tiles_down * tiles_across * 512);
  std::vector<std::uint8_t> plain(R * blocks);
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < tiles_down; ++i) {
    for (std::int64_t j = 0; j < tiles_across; ++j) {
      for (std::int64_t outer = 0; outer < 32; ++outer) {
        for (std::int64_t group = 0; group < 4; ++group) {
          for (std::int64_t b = 0; b < 4; ++b, ++at) {
            const std::int64_t row = i * 128 + group * 32 + outer, block = j * 4 + b;
            if (row < R && block < blocks) {
              plain[row * blocks + block] = tiled[at];
            } else {
              EXPECT_EQ(int{tiled[at]}, 0) << "padding at " << row << ", " << block;
            }
          }
        }
      }
    }
  }
  return plain;
}

void expect_mx(const Operand& x, Format format, MxRounding rounding, MxScaleLayout scale_layout,
               bool rows_wanted, bool transposed_wanted) {
  const std::int64_t M = x.rows(), K = x.columns(), kb = (K + 31) / 32, mb = (M + 31) / 32;
  const Layout rows =
      reference(M, K, format, rounding, [&](std::int64_t r, std::int64_t c) { return x.at(r, c); });
  const Layout transposed =
      reference(K, M, format, rounding, [&](std::int64_t r, std::int64_t c) { return x.at(c, r); });
  const bool tiled = scale_layout == MxScaleLayout::kTiled128x4;
  DeviceBuffer q(M * K), qt(M * K), rs(tiled ? mx_tiled_bytes(M, kb) : M * kb),
      cs(tiled ? mx_tiled_bytes(K, mb) : K * mb);
  QuantizeMxArgs args{
      .x = x.matrix(), .scale_layout = scale_layout, .format = format, .rounding = rounding};
  if (rows_wanted) args.rows = {q.get<std::uint8_t>(), rs.get<std::uint8_t>()};
  if (transposed_wanted) args.transposed = {qt.get<std::uint8_t>(), cs.get<std::uint8_t>()};
  quantize_mx(args, nullptr);
  const auto codes = [&](const DeviceBuffer& b, std::int64_t R, std::int64_t blocks) {
    const auto raw = b.download<std::uint8_t>();
    return tiled ? untiled(raw, R, blocks) : raw;
  };
  if (rows_wanted) {
    expect_same(codes(rs, M, kb), rows.codes, kb, "row codes");
    expect_same(q.download<std::uint8_t>(), rows.data, K, "rows");
  }
  if (transposed_wanted) {
    expect_same(codes(cs, K, mb), transposed.codes, mb, "column codes");
    expect_same(qt.download<std::uint8_t>(), transposed.data, M, "transposed");
  }
}

TEST(GpuQuantizeMx, EqualsAScalarLoop) {
  OCTAVO_REQUIRE_GPU();
  int i = 0;
  for_all_operands([&](DType dtype, const Size& size, View view, Values values) {
    const Operand x(dtype, size.rows, size.columns, view, values);
    for (Format format : kAllFormats) {
      for (MxRounding rounding : kRoundings) {
        if (values == Values::kNormal && rounding != MxRounding::kRceil) continue;
        SCOPED_TRACE(describe(dtype, size, view, values) + " " + std::string(name(format)) + " " +
                     std::string(name(rounding)));
        const auto layout = i++ % 2 ? MxScaleLayout::kPlain : MxScaleLayout::kTiled128x4;
        expect_mx(x, format, rounding, layout, true, true);
        if (i % 5 == 0) expect_mx(x, format, rounding, layout, true, false);
        if (i % 5 == 1) expect_mx(x, format, rounding, layout, false, true);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

}  // namespace
}  // namespace octavo::gpu::testing
