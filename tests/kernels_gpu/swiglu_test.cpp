// SwiGLU's kernels with the amaxes of what they write: the same bits, and the largest of them.
#include "octavo/kernels/gpu/swiglu.h"

#include "written_amax.h"

namespace octavo::gpu::testing {
namespace {

RowsOf rows_of(const Matrix& x) { return {const_cast<void*>(x.data), x.row_stride}; }

TEST(GpuSwiglu, KnowsTheAmaxesOfWhatItWrites) {
  OCTAVO_REQUIRE_GPU();
  struct Wanted {
    bool tensor, row, column;
  };
  for (DType dtype : kDTypes) {
    // With vectors, without, rows that end inside a batch, and more than the shortest strips.
    for (const Size& size :
         {Size{3, 8}, Size{33, 127}, Size{131, 264}, Size{144, 520}, Size{2063, 1032}}) {
      for (Values values : {Values::kNormal, Values::kAdversarial}) {
        for (const Wanted& w :
             {Wanted{true, false, false}, Wanted{false, true, true}, Wanted{true, true, true}}) {
          const std::int64_t m = size.rows, k = size.columns;
          const Operand gate(dtype, m, k, View::kContiguous, values, 1);
          const Operand up(dtype, m, k, View::kPaddedRows, values, 2);
          const Operand dh(dtype, m, k, View::kContiguous, values, 3);
          const auto bytes = static_cast<std::size_t>(m * k * bytes_of(dtype));
          const AmaxBuffer amax[3] = {{m, k}, {m, k}, {m, k}};
          const WrittenAmax wanted[3] = {amax[0].wanted(w.tensor, w.row, w.column),
                                         amax[1].wanted(w.tensor, w.row, w.column),
                                         amax[2].wanted(w.tensor, w.row, w.column)};
          const DeviceBuffer written[3] = {DeviceBuffer(bytes), DeviceBuffer(bytes),
                                           DeviceBuffer(bytes)};
          const DeviceBuffer plain[3] = {DeviceBuffer(bytes), DeviceBuffer(bytes),
                                         DeviceBuffer(bytes)};
          const auto run = [&](const DeviceBuffer(&out)[3], bool with_amaxes) {
            SwigluArgs args{.rows = m,
                            .columns = k,
                            .dtype = dtype,
                            .gate = rows_of(gate.matrix()),
                            .up = rows_of(up.matrix()),
                            .h = {out[0].get(), k},
                            .dh = rows_of(dh.matrix()),
                            .dgate = {out[1].get(), k},
                            .dup = {out[2].get(), k}};
            if (with_amaxes) {
              args.h_amax = wanted[0];
              args.dgate_amax = wanted[1];
              args.dup_amax = wanted[2];
            }
            swiglu(args, nullptr);
            swiglu_backward(args, nullptr);
          };
          run(written, true);
          run(plain, false);
          for (int i = 0; i < 3; ++i) {
            const std::string what = describe(dtype, size, {}, values) + ", result " +
                                     std::to_string(i) + (w.tensor ? " tensor" : "") +
                                     (w.row ? " lines" : "");
            EXPECT_TRUE(written[i].download<std::uint8_t>() == plain[i].download<std::uint8_t>())
                << what;
            expect_same(amax[i].floats.download<float>(),
                        amax[i].expected(dtype, written[i], wanted[i]), what);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace octavo::gpu::testing
