#include "octavo/quantize/quantize.h"

#include <gtest/gtest.h>

#include "octavo/kernels/counter.h"

namespace octavo {
namespace {

std::vector<int> bytes_of(const at::Tensor& data) {
  const at::Tensor bytes = data.contiguous().view(at::kByte).flatten();
  return std::vector<int>(bytes.data_ptr<std::uint8_t>(),
                          bytes.data_ptr<std::uint8_t>() + bytes.numel());
}

TEST(Quantize, DirectionOfTheScale) {
  const at::Tensor x = at::tensor({0.5f, 1.0f, 3.0f, -6.0f}).view({2, 2});
  const LayoutSpec tensorwise{.granularity = Granularity::tensorwise()};
  const QuantizedOperand q = quantize_operand(x, {.rows = tensorwise, .transposed = tensorwise});
  EXPECT_EQ(bytes_of(q.rows.data), (std::vector<int>{0x61, 0x69, 0x76, 0xFE}));
  EXPECT_EQ(bytes_of(q.transposed.data), (std::vector<int>{0x61, 0x76, 0x69, 0xFE}));
  EXPECT_EQ(q.rows.scale.item<float>(), 0.013392857f);
}

}  // namespace
}  // namespace octavo
