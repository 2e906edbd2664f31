// RMSNorm with the amaxes of what it writes, and as a producer: the bits of quantising a y in
// memory.
#include "octavo/kernels/gpu/rms_norm.h"

#include "octavo/kernels/gpu/cast.h"
#include "octavo/kernels/gpu/quantize_block.h"
#include "octavo/kernels/gpu/quantize_mx.h"
#include "octavo/kernels/gpu/quantize_row.h"
#include "written_amax.h"

namespace octavo::gpu::testing {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr float kEps = 1e-5f;

std::size_t bytes(std::int64_t count) { return static_cast<std::size_t>(count); }

// What one launch writes.
struct Written {
  DeviceBuffer h, y, rstd, partial;

  Written(DType dtype, const Size& size)
      : h(bytes(size.rows * size.columns * bytes_of(dtype))),
        y(bytes(size.rows * size.columns * bytes_of(dtype))),
        rstd(bytes(4 * size.rows)),
        partial(bytes(rms_norm_partials(size.rows, size.columns) * bytes_of(dtype))) {}
};

struct Inputs {
  DType dtype;
  Size size;
  Operand x, residual, w;

  Inputs(DType type, DType w_type, const Size& s, Values values)
      : dtype(type),
        size(s),
        x(type, s.rows, s.columns, View::kContiguous, values, 1),
        residual(type, s.rows, s.columns, View::kContiguous, Values::kNormal, 2),
        w(w_type, 1, s.columns, View::kContiguous, Values::kNormal, 3) {}

  RmsNormArgs args(const Written& out, bool adds) const {
    return {.x = x.matrix().data,
            .residual = adds ? residual.matrix().data : nullptr,
            .w = w.matrix().data,
            .dtype = dtype,
            .w_dtype = w.matrix().dtype,
            .rows = size.rows,
            .columns = size.columns,
            .eps = kEps,
            .h = adds ? out.h.get() : nullptr,
            .y = out.y.get(),
            .rstd = out.rstd.get<float>(),
            .partial = out.partial.get()};
  }
};

TEST(GpuRmsNorm, KnowsTheAmaxesOfWhatItWrites) {
  OCTAVO_REQUIRE_GPU();
  struct Wanted {
    bool tensor, row, column;
  };
  for (DType dtype : kDTypes) {
    // Rows of one, two and four items a thread, and more rows than blocks that keep columns.
    for (const Size& size :
         {Size{3, 8}, Size{33, 264}, Size{5, 4096}, Size{3, 16384}, Size{1500, 520}}) {
      for (Values values : {Values::kNormal, Values::kAdversarial}) {
        for (bool adds : {false, true}) {
          const Inputs in(dtype, DType::kFP32, size, values);
          const Written plain(dtype, size);
          rms_norm(in.args(plain, adds), nullptr);
          for (const Wanted& w :
               {Wanted{true, false, false}, Wanted{false, true, true}, Wanted{true, true, true}}) {
            for (bool writes : {true, false}) {
              const Written out(dtype, size);
              const AmaxBuffer amax(size.rows, size.columns);
              RmsNormArgs args = in.args(out, adds);
              args.y_amax = amax.wanted(w.tensor, w.row, w.column);
              if (!writes) args.y = nullptr;
              rms_norm(args, nullptr);
              const std::string what = describe(dtype, size, {}, values) +
                                       (adds ? " residual" : "") + (w.tensor ? " tensor" : "") +
                                       (w.row ? " lines" : "") + (writes ? "" : " unwritten");
              expect_same(amax.floats.download<float>(), amax.expected(dtype, plain.y, args.y_amax),
                          what);
              EXPECT_TRUE(out.h.download<std::uint8_t>() == plain.h.download<std::uint8_t>())
                  << what;
              EXPECT_TRUE(out.rstd.download<std::uint8_t>() == plain.rstd.download<std::uint8_t>())
                  << what;
              if (writes) {
                EXPECT_TRUE(out.y.download<std::uint8_t>() == plain.y.download<std::uint8_t>())
                    << what;
              }
            }
          }
        }
      }
    }
  }
}

// What a quantiser wrote.
struct Layouts {
  DeviceBuffer rows, transposed, row_scale, column_scale;

  explicit Layouts(const Size& s)
      : rows(bytes(s.rows * s.columns)),
        transposed(bytes(s.rows * s.columns)),
        row_scale(bytes(4 * s.rows * ((s.columns + 31) / 32))),
        column_scale(bytes(4 * s.columns * ((s.rows + 31) / 32))) {}
  std::vector<Bytes> download() const {
    return {rows.download<std::uint8_t>(), transposed.download<std::uint8_t>(),
            row_scale.download<std::uint8_t>(), column_scale.download<std::uint8_t>()};
  }
};

enum class Family { kTensor, kLines, kRows, kBlocks, kMx };

// x as it lies in memory, or as `from` computes it.
std::vector<Bytes> quantise(const Matrix& x, const Producer& from, Family family,
                            const WrittenAmax& amax) {
  const Layouts o({x.rows, x.columns});
  auto* const rows = o.rows.get<std::uint8_t>();
  auto* const transposed = o.transposed.get<std::uint8_t>();
  switch (family) {
    case Family::kTensor:
      cast({.x = x,
            .rows = {rows, amax.tensor, CastScales::kTensor, o.row_scale.get<float>()},
            .transposed = {transposed, amax.tensor, CastScales::kTensor,
                           o.column_scale.get<float>()},
            .from = from},
           nullptr);
      break;
    case Family::kLines:
      cast(
          {.x = x,
           .rows = {rows, amax.row, CastScales::kLines, o.row_scale.get<float>()},
           .transposed = {transposed, amax.column, CastScales::kLines, o.column_scale.get<float>()},
           .rounding = ScaleRounding::kPowerOfTwo,
           .from = from},
          nullptr);
      break;
    case Family::kRows:
      quantize_row({.x = x, .data = rows, .scale = o.row_scale.get<float>(), .from = from},
                   nullptr);
      break;
    case Family::kBlocks:
      quantize_block({.x = x,
                      .rows = {rows, o.row_scale.get<float>(), 1, x.rows},
                      .transposed = {transposed, o.column_scale.get<float>(), 1, x.columns},
                      .from = from},
                     nullptr);
      break;
    case Family::kMx:
      quantize_mx({.x = x,
                   .rows = {rows, o.row_scale.get<std::uint8_t>()},
                   .transposed = {transposed, o.column_scale.get<std::uint8_t>()},
                   .from = from},
                  nullptr);
      break;
  }
  return o.download();
}

TEST(GpuRmsNorm, IsQuantisedAsItIsWritten) {
  OCTAVO_REQUIRE_GPU();
  for (const Size& size :
       {Size{16, 16}, Size{128, 128}, Size{144, 272}, Size{2064, 16}, Size{272, 4096}}) {
    for (DType w_dtype : kDTypes) {
      for (Values values : {Values::kNormal, Values::kAdversarial}) {
        const Inputs in(DType::kBF16, w_dtype, size, values);
        const Written out(DType::kBF16, size);
        const AmaxBuffer amax(size.rows, size.columns);
        RmsNormArgs args = in.args(out, /*adds=*/true);
        args.y_amax = amax.wanted(true, true, true);
        rms_norm(args, nullptr);
        const Matrix y{out.y.get(), DType::kBF16, size.rows, size.columns, size.columns, 1};
        const Matrix shape{nullptr, DType::kBF16, size.rows, size.columns, size.columns, 1};
        const Producer from{.what = Production::kRmsNorm,
                            .h = {out.h.get(), size.columns},
                            .rstd = out.rstd.get<float>(),
                            .w = in.w.matrix().data,
                            .w_dtype = w_dtype};
        ASSERT_TRUE(fits_producer(from, shape, Format::kE4M3FN, false));
        for (Family family :
             {Family::kTensor, Family::kLines, Family::kRows, Family::kBlocks, Family::kMx}) {
          const auto got = quantise(shape, from, family, args.y_amax);
          const auto want = quantise(y, {}, family, args.y_amax);
          for (std::size_t i = 0; i < got.size(); ++i) {
            EXPECT_TRUE(got[i] == want[i]) << describe(w_dtype, size, {}, values) << ", family "
                                           << static_cast<int>(family) << ", buffer " << i;
          }
        }
      }
    }
  }
}

TEST(GpuRmsNorm, ProducersThatKernelsDoNotTake) {
  OCTAVO_REQUIRE_GPU();
  const Inputs in(DType::kBF16, DType::kFP32, {32, 64}, Values::kNormal);
  const Written out(DType::kBF16, {32, 64});
  const Producer from{.what = Production::kRmsNorm,
                      .h = {in.x.matrix().data, 64},
                      .rstd = out.rstd.get<float>(),
                      .w = in.w.matrix().data,
                      .w_dtype = DType::kFP32};
  Matrix shape{nullptr, DType::kBF16, 32, 64, 64, 1};
  EXPECT_TRUE(fits_producer(from, shape, Format::kE4M3FN, false));
  EXPECT_FALSE(fits_producer(from, shape, Format::kE4M3FN, true));  // by offsets
  EXPECT_FALSE(fits_producer(from, shape, Format::kE5M2, false));   // gradients only
  Producer misaligned = from;
  misaligned.w = static_cast<const char*>(misaligned.w) + 4;
  EXPECT_FALSE(fits_producer(misaligned, shape, Format::kE4M3FN, false));
  shape.rows = 17;
  EXPECT_FALSE(fits_producer(from, shape, Format::kE4M3FN, false));
}

}  // namespace
}  // namespace octavo::gpu::testing
