// More elements than 2^31: the last rows and columns must equal those of small operands, views of
// the same memory, which the other tests compare with scalar loops.
#include "octavo/kernels/gpu/amax.h"
#include "octavo/kernels/gpu/cast.h"
#include "octavo/kernels/gpu/quantize_block.h"
#include "octavo/kernels/gpu/quantize_mx.h"
#include "octavo/kernels/gpu/quantize_row.h"
#include "operands.h"

namespace octavo::gpu::testing {
namespace {

constexpr std::int64_t kM = 65552, kK = 40960;             // 2.69e9
constexpr std::int64_t kLastM = 65536, kLastK = kK - 128;  // whole tiles come before

// rows x columns bytes at `from` whose rows are `stride` apart.
std::vector<std::uint8_t> download_piece(const std::uint8_t* from, std::int64_t stride,
                                         std::int64_t rows, std::int64_t columns) {
  std::vector<std::uint8_t> bytes(rows * columns);
  check(cudaMemcpy2D(bytes.data(), columns, from, stride, columns, rows, cudaMemcpyDeviceToHost));
  return bytes;
}

class GpuLargeOperand : public ::testing::Test {
 protected:
  void SetUp() override {
    OCTAVO_REQUIRE_GPU();
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    if (free < std::size_t{12} << 30) {
      GTEST_SKIP() << "needs 12 GB of free device memory, has " << (free >> 20) << " MB";
    }
    x_ = std::make_unique<DeviceBuffer>(2 * kM * kK);
    q_ = std::make_unique<DeviceBuffer>(kM * kK);
    qt_ = std::make_unique<DeviceBuffer>(kM * kK);
    std::vector<std::uint16_t> piece(16 * 1024 * 1024 - 3);  // odd, so that rows differ
    std::mt19937 random(3);
    for (auto& b : piece) b = static_cast<std::uint16_t>((random() & 0x83FF) | 0x3C00);
    const auto size = static_cast<std::int64_t>(piece.size());
    for (std::int64_t at = 0; at < kM * kK; at += size) {
      check(cudaMemcpy(x_->get<std::uint16_t>() + at, piece.data(),
                       2 * std::min(size, kM * kK - at), cudaMemcpyHostToDevice));
    }
  }

  Matrix matrix() const { return {x_->get(), DType::kBF16, kM, kK, kK, 1}; }
  Matrix last_rows() const {
    return {x_->get<std::uint16_t>() + kLastM * kK, DType::kBF16, kM - kLastM, kK, kK, 1};
  }
  Matrix last_columns() const {
    return {x_->get<std::uint16_t>() + kLastK, DType::kBF16, kM, kK - kLastK, kK, 1};
  }

  // quantize(x, first row, first column, rows' bytes, transposed bytes), of everything and of the
  // last pieces.
  template <class Quantize>
  void expect_last_lines(const Quantize& quantize) {
    quantize(matrix(), 0, 0, q_->get<std::uint8_t>(), qt_->get<std::uint8_t>());
    check(cudaGetLastError());
    const auto compare = [&](const Matrix& x, std::int64_t m, std::int64_t k) {
      DeviceBuffer q(x.rows * x.columns), qt(x.rows * x.columns);
      quantize(x, m, k, q.get<std::uint8_t>(), qt.get<std::uint8_t>());
      expect_same(download_piece(q_->get<std::uint8_t>() + m * kK + k, kK, x.rows, x.columns),
                  q.download<std::uint8_t>(), x.columns, "rows");
      expect_same(download_piece(qt_->get<std::uint8_t>() + k * kM + m, kM, x.columns, x.rows),
                  qt.download<std::uint8_t>(), x.rows, "transposed");
    };
    compare(last_rows(), kLastM, 0);
    compare(last_columns(), 0, kLastK);
  }

  std::unique_ptr<DeviceBuffer> x_, q_, qt_;
};

TEST_F(GpuLargeOperand, AmaxAndCast) {
  DeviceBuffer amaxes(4 * (kM + kK)), small(4 * (kM + kK));
  float *row = amaxes.get<float>(), *column = row + kM;
  amaxes.zero();
  amax({.x = matrix(), .row = row, .column = column}, nullptr);
  const auto all = amaxes.download<float>();
  small.zero();
  amax({.x = last_rows(), .row = small.get<float>() + kLastM}, nullptr);
  amax({.x = last_columns(), .column = small.get<float>() + kM + kLastK}, nullptr);
  const auto last = small.download<float>();
  for (std::int64_t m = kLastM; m < kM; ++m) ASSERT_EQ(all[m], last[m]) << m;
  for (std::int64_t k = kLastK; k < kK; ++k) ASSERT_EQ(all[kM + k], last[kM + k]) << k;
  expect_last_lines(
      [&](const Matrix& x, std::int64_t m, std::int64_t k, std::uint8_t* q, std::uint8_t* qt) {
        cast({.x = x,
              .rows = {q, row + m, CastScales::kLines, nullptr},
              .transposed = {qt, column + k, CastScales::kLines, nullptr}},
             nullptr);
      });
}

TEST_F(GpuLargeOperand, Blocks) {
  DeviceBuffer scales(4 * (kM * (kK / 128) + kK * (kM / 128 + 1)));
  expect_last_lines(
      [&](const Matrix& x, std::int64_t, std::int64_t, std::uint8_t* q, std::uint8_t* qt) {
        quantize_block({.x = x,
                        .rows = {q, scales.get<float>(), 1, x.rows},
                        .transposed = {qt, scales.get<float>() + kM * (kK / 128), 1, x.columns}},
                       nullptr);
      });
  expect_last_lines(
      [&](const Matrix& x, std::int64_t, std::int64_t, std::uint8_t* q, std::uint8_t* qt) {
        quantize_block({.x = x,
                        .rows = {q, scales.get<float>(), kK / 128, 1},
                        .transposed = {qt, scales.get<float>() + kM * (kK / 128), kM / 128 + 1, 1},
                        .shape = BlockShape::k128x128},
                       nullptr);
      });
}

TEST_F(GpuLargeOperand, MxBlocks) {
  DeviceBuffer codes(kM * (kK / 32) + kK * (kM / 32 + 1));
  expect_last_lines(
      [&](const Matrix& x, std::int64_t, std::int64_t, std::uint8_t* q, std::uint8_t* qt) {
        quantize_mx({.x = x,
                     .rows = {q, codes.get<std::uint8_t>()},
                     .transposed = {qt, codes.get<std::uint8_t>() + kM * (kK / 32)}},
                    nullptr);
      });
}

TEST_F(GpuLargeOperand, Rows) {
  DeviceBuffer scale(4 * kM), small(4 * (kM - kLastM)), q((kM - kLastM) * kK);
  quantize_row({matrix(), q_->get<std::uint8_t>(), scale.get<float>()}, nullptr);
  quantize_row({last_rows(), q.get<std::uint8_t>(), small.get<float>()}, nullptr);
  expect_same(download_piece(q_->get<std::uint8_t>() + kLastM * kK, kK, kM - kLastM, kK),
              q.download<std::uint8_t>(), kK, "rows");
  const auto all = scale.download<float>();
  expect_same(std::vector<float>(all.begin() + kLastM, all.end()), small.download<float>(),
              "scales");
}

}  // namespace
}  // namespace octavo::gpu::testing
