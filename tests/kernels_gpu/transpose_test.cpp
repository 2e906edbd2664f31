#include "octavo/kernels/gpu/transpose.h"

#include "operands.h"

namespace octavo::gpu::testing {
namespace {

void expect_transposed(std::int64_t rows, std::int64_t columns, std::int64_t stride,
                       std::size_t misalignment) {
  SCOPED_TRACE(std::to_string(rows) + "x" + std::to_string(columns) + " stride " +
               std::to_string(stride) + " misaligned " + std::to_string(misalignment));
  std::vector<std::uint8_t> from(rows * stride), expected(rows * columns);
  std::mt19937 random(1);
  for (auto& byte : from) byte = static_cast<std::uint8_t>(random());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) expected[c * rows + r] = from[r * stride + c];
  }
  DeviceBuffer x(from.size(), misalignment), y(expected.size(), misalignment);
  x.upload(from.data());
  transpose_bytes({.from = x.get<std::uint8_t>(),
                   .to = y.get<std::uint8_t>(),
                   .rows = rows,
                   .columns = columns,
                   .row_stride = stride},
                  nullptr);
  expect_same(y.download<std::uint8_t>(), expected, rows, "transposed");
}

TEST(GpuTranspose, EveryByteIsThere) {
  OCTAVO_REQUIRE_GPU();
  // Around a thread (16), a tile (128 x 256) and the small tile (32), and none of them.
  for (const Size& size : {Size{1, 1}, Size{16, 16}, Size{17, 16}, Size{16, 33}, Size{128, 256},
                           Size{144, 272}, Size{112, 240}, Size{1040, 48}, Size{48, 1040},
                           Size{31, 33}, Size{300, 301}, Size{1, 500}, Size{500, 1}}) {
    expect_transposed(size.rows, size.columns, size.columns, 0);
    expect_transposed(size.rows, size.columns, size.columns + 16, 0);
    expect_transposed(size.rows, size.columns, size.columns + 1, 0);
    expect_transposed(size.rows, size.columns, size.columns, 1);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(GpuTranspose, EmptyIsNothingToDo) {
  OCTAVO_REQUIRE_GPU();
  transpose_bytes({.rows = 0, .columns = 16, .row_stride = 16}, nullptr);
  transpose_bytes({.rows = 16, .columns = 0}, nullptr);
  check(cudaDeviceSynchronize());
}

}  // namespace
}  // namespace octavo::gpu::testing
