#include "octavo/kernels/gpu/amax.h"

#include "operands.h"

namespace octavo::gpu::testing {
namespace {

TEST(GpuAmax, TensorRowAndColumnEqualAScalarLoop) {
  OCTAVO_REQUIRE_GPU();
  for_all_operands([](DType dtype, const Size& size, View view, Values values) {
    SCOPED_TRACE(describe(dtype, size, view, values));
    const Operand x(dtype, size.rows, size.columns, view, values);
    std::vector<float> tensor(1, 0.0f), row(size.rows, 0.0f), column(size.columns, 0.0f);
    for (std::int64_t m = 0; m < size.rows; ++m) {
      for (std::int64_t k = 0; k < size.columns; ++k) {
        tensor[0] = amax_of(tensor[0], x.at(m, k));
        row[m] = amax_of(row[m], x.at(m, k));
        column[k] = amax_of(column[k], x.at(m, k));
      }
    }
    DeviceBuffer t(4), r(4 * row.size()), c(4 * column.size());
    const auto run = [&](bool tensorwise, bool by_row, bool by_column) {
      for (DeviceBuffer* b : {&t, &r, &c}) b->zero();
      amax({x.matrix(), tensorwise ? t.get<float>() : nullptr, by_row ? r.get<float>() : nullptr,
            by_column ? c.get<float>() : nullptr},
           nullptr);
      expect_same(t.download<float>(), tensorwise ? tensor : std::vector<float>(1, 0.0f), "tensor");
      expect_same(r.download<float>(), by_row ? row : std::vector<float>(row.size(), 0.0f), "row");
      expect_same(c.download<float>(), by_column ? column : std::vector<float>(column.size(), 0.0f),
                  "column");
    };
    run(true, true, true);
    run(false, true, true);
    run(true, false, false);
    run(false, true, false);
    run(false, false, true);
  });
}

TEST(GpuAmax, EmptyOperandsLeaveZero) {
  OCTAVO_REQUIRE_GPU();
  DeviceBuffer tensor(4);
  tensor.zero();
  amax({{nullptr, DType::kBF16, 0, 8, 8, 1}, tensor.get<float>(), nullptr, nullptr}, nullptr);
  amax({{nullptr, DType::kBF16, 8, 0, 0, 1}, tensor.get<float>(), nullptr, nullptr}, nullptr);
  EXPECT_EQ(tensor.download<float>()[0], 0.0f);
}

}  // namespace
}  // namespace octavo::gpu::testing
