#include "octavo/kernels/gpu/embedding_gradient.h"

#include <numeric>

#include "octavo/kernels/matrix.h"
#include "operands.h"

namespace octavo::gpu::testing {
namespace {

// Sums in fp32 in the order the kernel promises: equal bits.
void expect_sums(std::int64_t tokens, std::int64_t features, std::int64_t vocabulary, bool bf16) {
  std::mt19937 random(static_cast<unsigned>(tokens * 31 + features));
  std::normal_distribution<float> normal;
  const std::size_t element = bf16 ? 2 : 4;
  const auto draw = [&](std::int64_t count) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count) * element);
    for (std::int64_t i = 0; i < count; ++i) {
      const float x = normal(random);
      const std::uint16_t half = kernels::bfloat16_bits(x);
      std::memcpy(&bytes[i * element], bf16 ? static_cast<const void*>(&half) : &x, element);
    }
    return bytes;
  };
  const auto value = [&](const std::vector<std::uint8_t>& bytes, std::int64_t i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &bytes[i * element], element);
    return kernels::value_of(
        bf16 ? kernels::HighPrecision::kBFloat16 : kernels::HighPrecision::kFloat32, bits);
  };
  std::vector<std::int64_t> token(tokens), order(tokens), sorted(tokens);
  for (std::int64_t& t : token) t = static_cast<std::int64_t>(random() % vocabulary);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return token[a] < token[b]; });
  for (std::int64_t i = 0; i < tokens; ++i) sorted[i] = token[order[i]];
  const auto dy = draw(tokens * features), gradient = draw(vocabulary * features);

  std::vector<std::uint8_t> want = gradient;
  std::vector<float> sums(vocabulary * features);
  for (std::int64_t i = 0; i < vocabulary * features; ++i) sums[i] = value(gradient, i);
  for (std::int64_t m = 0; m < tokens; ++m) {
    for (std::int64_t d = 0; d < features; ++d)
      sums[token[m] * features + d] += value(dy, m * features + d);
  }
  for (std::int64_t i = 0; i < vocabulary * features; ++i) {
    const std::uint16_t half = kernels::bfloat16_bits(sums[i]);
    std::memcpy(&want[i * element], bf16 ? static_cast<const void*>(&half) : &sums[i], element);
  }

  DeviceBuffer sorted_buffer(tokens * 8), order_buffer(tokens * 8), dy_buffer(dy.size()),
      gradient_buffer(gradient.size());
  sorted_buffer.upload(sorted.data());
  order_buffer.upload(order.data());
  dy_buffer.upload(dy.data());
  gradient_buffer.upload(gradient.data());
  add_embedding_gradient({.sorted = sorted_buffer.get<std::int64_t>(),
                          .order = order_buffer.get<std::int64_t>(),
                          .tokens = tokens,
                          .features = features,
                          .dtype = bf16 ? DType::kBF16 : DType::kFP32,
                          .dy = dy_buffer.get(),
                          .gradient = gradient_buffer.get()},
                         nullptr);
  const std::vector<std::uint8_t> got = gradient_buffer.download<std::uint8_t>();
  const auto differ = std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin();
  EXPECT_EQ(differ, static_cast<std::ptrdiff_t>(got.size()))
      << tokens << " tokens of " << vocabulary << ", " << features << " features, bf16 " << bf16;
}

TEST(GpuEmbeddingGradient, AddsTheRowsOfEachTokenInOrder) {
  OCTAVO_REQUIRE_GPU();
  for (const bool bf16 : {false, true}) {
    for (const std::int64_t features : {1, 7, 8, 64, 2048, 2056, 4099}) {
      expect_sums(1, features, 3, bf16);
      expect_sums(100, features, 1, bf16);  // one token a hundred times
      expect_sums(257, features, 40, bf16);
    }
  }
  add_embedding_gradient({}, nullptr);
  check(cudaGetLastError());
}

}  // namespace
}  // namespace octavo::gpu::testing
