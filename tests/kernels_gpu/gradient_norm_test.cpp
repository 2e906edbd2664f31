#include "octavo/kernels/gpu/gradient_norm.h"

#include <limits>

#include "operands.h"

namespace octavo::gpu::testing {
namespace {

// A gradient on the host (as fp32 values) and on the device, `misalignment` bytes off a 16-byte
// boundary.
struct Gradient {
  DType dtype;
  std::vector<float> values;
  std::unique_ptr<DeviceBuffer> buffer;

  Gradient(DType dtype, std::vector<float> given, std::size_t misalignment = 0)
      : dtype(dtype), values(std::move(given)) {
    const auto element = static_cast<std::size_t>(bytes_of(dtype));
    std::vector<std::uint8_t> bytes(values.size() * element);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint32_t bits = from_float(dtype, values[i]);
      std::memcpy(&bytes[i * element], &bits, element);
      values[i] = to_float(dtype, bits);
    }
    buffer = std::make_unique<DeviceBuffer>(bytes.size(), misalignment);
    buffer->upload(bytes.data());
  }
  GradientTensor tensor() const {
    return {buffer->get(), static_cast<std::int64_t>(values.size()), dtype};
  }
};

std::vector<float> drawn(std::size_t size, unsigned seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& x : values) x = normal(random) * scale;
  return values;
}

float norm_of(const std::vector<Gradient>& gradients) {
  std::vector<GradientTensor> table;
  for (const Gradient& g : gradients) table.push_back(g.tensor());
  const auto count = static_cast<std::int64_t>(table.size());
  DeviceBuffer partial(static_cast<std::size_t>(gradient_norm_partials(table.data(), count)) *
                       sizeof(double)),
      norm(sizeof(float));
  gradient_norm({.tensors = table.data(),
                 .count = count,
                 .partial = partial.get<double>(),
                 .norm = norm.get<float>()},
                nullptr);
  partial.download<double>();  // sees what was written outside
  return norm.download<float>()[0];
}

double reference(const std::vector<Gradient>& gradients) {
  long double sum = 0.0L;
  for (const Gradient& g : gradients) {
    for (float x : g.values) sum += static_cast<long double>(x) * x;
  }
  return static_cast<double>(std::sqrt(sum));
}

void expect_norm(const std::vector<Gradient>& gradients, const std::string& what) {
  const double want = reference(gradients), got = norm_of(gradients);
  // The header's bound: 16 roundings of fp32 sums of squares, half of which the root leaves, the
  // root's own, and one to spare.
  EXPECT_TRUE(std::abs(got - want) <= 10 * std::ldexp(want, -24))
      << what << ": " << got << ", expected " << want;
}

TEST(GpuGradientNorm, IsTheNormOfAllTensorsTogether) {
  OCTAVO_REQUIRE_GPU();
  const std::size_t sizes[] = {1, 7, 8, 9, 2047, 2048, 2049, 32767, 32768, 32769, 65536, 100003};
  unsigned seed = 0;
  for (DType dtype : kDTypes) {
    for (std::size_t size : sizes) {
      std::vector<Gradient> one;
      one.emplace_back(dtype, drawn(size, ++seed));
      expect_norm(one, "dtype " + std::to_string(int(dtype)) + ", " + std::to_string(size));
    }
  }
  std::vector<Gradient> all;
  for (std::size_t size : sizes) {
    for (DType dtype : kDTypes) {
      ++seed;
      all.emplace_back(dtype, drawn(size, seed, seed % 3 ? 1.0f : 30.0f));
      all.emplace_back(dtype, std::vector<float>());
    }
  }
  expect_norm(all, "all");
}

// The last element of a tensor, and of a vector, block and launch, counts once.
TEST(GpuGradientNorm, EveryElementCountsOnce) {
  OCTAVO_REQUIRE_GPU();
  for (DType dtype : kDTypes) {
    for (std::size_t size : {1u, 8u, 13u, 2056u, 32768u, 32771u, 98304u}) {
      for (std::size_t at : {std::size_t{0}, size / 2, size - 1}) {
        std::vector<float> values(size, 0.0f);
        values[at] = 3.0f;
        std::vector<Gradient> gradients;
        gradients.emplace_back(dtype, std::vector<float>{4.0f});
        gradients.emplace_back(dtype, values);
        EXPECT_EQ(norm_of(gradients), 5.0f) << size << " at " << at;
      }
    }
  }
}

TEST(GpuGradientNorm, AlignmentChangesNoBit) {
  OCTAVO_REQUIRE_GPU();
  for (DType dtype : kDTypes) {
    for (std::size_t size : {1000u, 32768u, 70001u}) {
      std::vector<float> norms;
      for (std::size_t misalignment : {0, 4, 8}) {
        std::vector<Gradient> gradients;
        gradients.emplace_back(dtype, drawn(size, 5), misalignment);
        norms.push_back(norm_of(gradients));
        EXPECT_TRUE(same(norm_of(gradients), norms[0])) << "again";
      }
      EXPECT_TRUE(same(norms[1], norms[0]) && same(norms[2], norms[0])) << size;
    }
  }
  std::vector<Gradient> odd;  // two bytes off four
  odd.emplace_back(DType::kBF16, drawn(40000, 5), 2);
  std::vector<Gradient> even;
  even.emplace_back(DType::kBF16, drawn(40000, 5));
  EXPECT_TRUE(same(norm_of(odd), norm_of(even)));
}

TEST(GpuGradientNorm, AnyNumberOfTensors) {
  OCTAVO_REQUIRE_GPU();
  for (int count : {0, 1, kGradientsPerLaunch, kGradientsPerLaunch + 1, 500}) {
    std::vector<Gradient> gradients;
    for (int i = 0; i < count; ++i) {
      const std::size_t size = i % 5 == 3 ? 0 : i == 40 ? 200000 : 10 + i;
      gradients.emplace_back(kDTypes[i % 3], drawn(size, i), i % 4 == 1 ? 4 : 0);
    }
    expect_norm(gradients, std::to_string(count) + " tensors");
  }
  std::vector<Gradient> empty;
  empty.emplace_back(DType::kFP32, std::vector<float>());
  EXPECT_EQ(norm_of(empty), 0.0f);
}

TEST(GpuGradientNorm, WhatIsNotFiniteStaysSo) {
  OCTAVO_REQUIRE_GPU();
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (DType dtype : kDTypes) {
    for (std::size_t at : {0u, 33000u, 39999u}) {
      for (float bad : {inf, -inf, std::nanf("")}) {
        std::vector<float> values = drawn(40000, 2);
        values[at] = bad;
        std::vector<Gradient> gradients;
        gradients.emplace_back(DType::kFP32, drawn(10, 1));
        gradients.emplace_back(dtype, values);
        const float norm = norm_of(gradients);
        EXPECT_TRUE(std::isnan(bad) ? std::isnan(norm) : norm == inf) << bad << ": " << norm;
        // Inf and NaN together are NaN.
        gradients.emplace_back(DType::kBF16, std::vector<float>{std::nanf("")});
        EXPECT_TRUE(std::isnan(norm_of(gradients)));
      }
    }
  }
}

TEST(GpuGradientNorm, TheEndsOfTheRange) {
  OCTAVO_REQUIRE_GPU();
  const auto norm = [](float x, std::size_t size) {
    std::vector<Gradient> gradients;
    gradients.emplace_back(DType::kFP32, std::vector<float>(size, x));
    return norm_of(gradients);
  };
  EXPECT_EQ(norm(std::ldexp(1.0f, 64), 1), std::numeric_limits<float>::infinity());
  // Their sum is past fp32, its root is not: 2^60 * 2^9.
  EXPECT_EQ(norm(std::ldexp(1.0f, 60), std::size_t{1} << 18), std::ldexp(1.0f, 69));
  EXPECT_EQ(norm(std::ldexp(1.0f, -74), 4), std::ldexp(1.0f, -73));  // subnormal squares
  EXPECT_EQ(norm(1e-30f, 100), 0.0f);
}

// Sums of 2^24 and more equal terms: a sum in fp32 would stop growing.
TEST(GpuGradientNorm, ManyElements) {
  OCTAVO_REQUIRE_GPU();
  const std::int64_t size = (std::int64_t{1} << 31) + 32768 + 24;
  void* data = nullptr;
  if (cudaMalloc(&data, static_cast<std::size_t>(2 * size)) != cudaSuccess) {
    (void)cudaGetLastError();
    GTEST_SKIP() << "needs 4 GiB of GPU memory";
  }
  check(cudaMemset(data, 0x3C, static_cast<std::size_t>(2 * size)));
  const GradientTensor tensor{data, size, DType::kBF16};
  DeviceBuffer partial(static_cast<std::size_t>(gradient_norm_partials(&tensor, 1)) * 8), norm(4);
  gradient_norm(
      {.tensors = &tensor, .count = 1, .partial = partial.get<double>(), .norm = norm.get<float>()},
      nullptr);
  const double want = std::sqrt(static_cast<double>(size)) * to_float(DType::kBF16, 0x3C3C);
  const double got = norm.download<float>()[0];
  EXPECT_TRUE(std::abs(got - want) <= 10 * std::ldexp(want, -24)) << got << " against " << want;
  (void)cudaFree(data);
}

}  // namespace
}  // namespace octavo::gpu::testing
