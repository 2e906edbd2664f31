#pragma once

#include <cmath>
#include <numeric>

#include "octavo/kernels/gpu/grouped_gemm.h"
#include "operands.h"

/// Grouped products with their operands on the host and their results in fp64.
///
/// Elements are small integers and scales powers of two wherever results are compared bit for bit:
/// all sums are exact then, in any order and with any accumulation, and one rounding is left.
namespace octavo::gpu::testing {

#define OCTAVO_REQUIRE_HOPPER()                                                         \
  OCTAVO_REQUIRE_GPU();                                                                 \
  do {                                                                                  \
    int major = 0;                                                                      \
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));        \
    if (major != 9) GTEST_SKIP() << "no GPU on this machine of compute capability 9.0"; \
  } while (0)

inline std::uint16_t round_to_bf16(double x) {
  const std::uint32_t bits = internal::bits_of(static_cast<float>(x));  // exact in these tests
  if (x != x) return 0x7FFF;
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline double from_bf16(std::uint16_t bits) {
  return internal::float_of(std::uint32_t{bits} << 16);
}
inline bool is_nan_bf16(std::uint16_t bits) { return (bits & 0x7FFF) > 0x7F80; }

struct Random {
  std::mt19937 engine;
  explicit Random(unsigned seed) : engine(seed) {}
  int below(int n) { return static_cast<int>(engine() % static_cast<unsigned>(n)); }
  std::uint8_t small_integer() {
    static constexpr float kValues[] = {-2, -1, -1, 0, 0, 1, 1, 3};
    return encode(Format::kE4M3FN, kValues[below(8)], Overflow::kSaturate);
  }
  std::uint8_t normal() {
    std::normal_distribution<float> draw(0.0f, 60.0f);
    return encode(Format::kE4M3FN, draw(engine), Overflow::kSaturate);
  }
  float power_of_two() { return std::ldexp(1.0f, below(9) - 4); }
  float scale() { return std::ldexp(1.0f + static_cast<float>(below(1000)) / 1000.0f, below(5)); }
};

inline float decode_e4m3(std::uint8_t byte) { return decode(Format::kE4M3FN, byte); }

enum class Fill { kExact, kNormal };

/// One product, its operands on the host, and its expected result in fp64.
struct Problem {
  std::vector<std::uint8_t> a, b;
  std::vector<float> a_scale, b_scale;
  std::vector<std::int32_t> offs;
  std::int64_t out_rows = 0, out_columns = 0;
  std::vector<double> expected;  // scaled; zero where nothing is summed

  std::int64_t a_block = 0, b_block = 0, b_group = 0, b_row = 0;  // strides of block scales

  bool blocks() const { return a_block != 0; }

  /// With `held`, the weight gradient is added to it.
  template <class Args>
  std::vector<std::uint16_t> run(Args args, bool counted = false,
                                 const std::vector<std::uint16_t>* held = nullptr) const {
    DeviceBuffer a_(a.size()), b_(b.size()), a_scale_(4 * a_scale.size()),
        b_scale_(4 * b_scale.size()), offs_(4 * offs.size()), out(2 * out_rows * out_columns);
    a_.upload(a.data()), b_.upload(b.data()), offs_.upload(offs.data());
    a_scale_.upload(a_scale.data()), b_scale_.upload(b_scale.data());
    args.a = a_.get<std::uint8_t>(), args.b = b_.get<std::uint8_t>();
    args.a_scale = a_scale_.get<float>(), args.b_scale = b_scale_.get<float>();
    args.offs = offs_.get<std::int32_t>(), args.out = out.get<>();
    args.E = static_cast<int>(offs.size());
    DeviceBuffer counter(4);
    counter.zero();
    if (counted) args.counter = counter.get<std::int32_t>();
    const char* wrong = nullptr;
    if (blocks()) args.scaling = Scaling::kBlocks, args.a_block = a_block;
    if constexpr (std::is_same_v<Args, GroupedGemmRowsArgs>) {
      args.b_group = b_group, args.b_row = b_row;
      wrong = grouped_gemm_rows(args, nullptr);
    } else {
      args.b_block = b_block, args.accumulate = held != nullptr;
      if (held) out.upload(held->data());
      wrong = grouped_gemm_k(args, nullptr);
    }
    EXPECT_EQ(wrong, nullptr) << wrong;
    EXPECT_EQ(counter.download<std::int32_t>()[0], 0);
    return out.download<std::uint16_t>();
  }
};

/// Clamped ends, as the kernels' contract says.
inline std::vector<std::int32_t> clamped(const std::vector<std::int32_t>& offs,
                                         std::int64_t limit) {
  std::vector<std::int32_t> ends;
  std::int32_t end = 0;
  for (std::int32_t o : offs) {
    end = std::max(end, std::min(o, static_cast<std::int32_t>(limit)));
    ends.push_back(end);
  }
  return ends;
}

inline Problem rows_problem(const std::vector<std::int32_t>& offs, std::int64_t M, std::int64_t N,
                            std::int64_t K, Fill fill, unsigned seed = 1) {
  Problem p;
  Random random(seed);
  const auto E = static_cast<std::int64_t>(offs.size());
  const auto byte = [&] { return fill == Fill::kExact ? random.small_integer() : random.normal(); };
  const auto scale = [&] { return fill == Fill::kExact ? random.power_of_two() : random.scale(); };
  p.a.resize(M * K), p.b.resize(E * N * K), p.a_scale.resize(M), p.b_scale.resize(E * N);
  for (auto& v : p.a) v = byte();
  for (auto& v : p.b) v = byte();
  for (auto& v : p.a_scale) v = scale();
  for (auto& v : p.b_scale) v = scale();
  p.offs = offs, p.out_rows = M, p.out_columns = N, p.expected.assign(M * N, 0.0);
  std::vector<float> a(p.a.size()), b(p.b.size());
  std::transform(p.a.begin(), p.a.end(), a.begin(), decode_e4m3);
  std::transform(p.b.begin(), p.b.end(), b.begin(), decode_e4m3);
  const auto ends = clamped(offs, M);
  for (std::int64_t g = 0; g < E; ++g) {
    for (std::int64_t m = g ? ends[g - 1] : 0; m < ends[g]; ++m) {
      for (std::int64_t n = 0; n < N; ++n) {
        double sum = 0.0;
        for (std::int64_t k = 0; k < K; ++k) {
          sum += double{a[m * K + k]} * double{b[(g * N + n) * K + k]};
        }
        p.expected[m * N + n] = sum * p.a_scale[m] * p.b_scale[g * N + n];
      }
    }
  }
  // Rows of no group: NaN, and scales of NaN.
  const std::int64_t used = ends.empty() ? 0 : ends.back();
  std::fill(p.a.begin() + used * K, p.a.end(), std::uint8_t{0x7F});
  std::fill(p.a_scale.begin() + used, p.a_scale.end(), NAN);
  return p;
}

/// `offs`: aligned ends. Columns behind the last end are NaN.
inline Problem k_problem(const std::vector<std::int32_t>& offs, std::int64_t N, std::int64_t K,
                         std::int64_t Mt, Fill fill, unsigned seed = 1) {
  Problem p;
  Random random(seed);
  const auto E = static_cast<std::int64_t>(offs.size());
  const auto byte = [&] { return fill == Fill::kExact ? random.small_integer() : random.normal(); };
  const auto scale = [&] { return fill == Fill::kExact ? random.power_of_two() : random.scale(); };
  p.a.resize(N * Mt), p.b.resize(K * Mt), p.a_scale.resize(E * N), p.b_scale.resize(E * K);
  for (auto& v : p.a) v = byte();
  for (auto& v : p.b) v = byte();
  for (auto& v : p.a_scale) v = scale();
  for (auto& v : p.b_scale) v = scale();
  p.offs = offs, p.out_rows = E * N, p.out_columns = K, p.expected.assign(E * N * K, 0.0);
  std::vector<float> a(p.a.size()), b(p.b.size());
  std::transform(p.a.begin(), p.a.end(), a.begin(), decode_e4m3);
  std::transform(p.b.begin(), p.b.end(), b.begin(), decode_e4m3);
  const auto ends = clamped(offs, Mt);
  for (std::int64_t g = 0; g < E; ++g) {
    const std::int64_t begin = g ? ends[g - 1] : 0;
    if (begin == ends[g]) {  // no columns: zero whatever the scales
      std::fill_n(p.a_scale.begin() + g * N, N, INFINITY);
      std::fill_n(p.b_scale.begin() + g * K, K, NAN);
      continue;
    }
    for (std::int64_t n = 0; n < N; ++n) {
      for (std::int64_t k = 0; k < K; ++k) {
        double sum = 0.0;
        for (std::int64_t m = begin; m < ends[g]; ++m) {
          sum += double{a[n * Mt + m]} * double{b[k * Mt + m]};
        }
        p.expected[(g * N + n) * K + k] = sum * p.a_scale[g * N + n] * p.b_scale[g * K + k];
      }
    }
  }
  const std::int64_t used = ends.empty() ? 0 : ends.back();
  for (std::int64_t n = 0; n < N; ++n) {
    std::fill(p.a.begin() + n * Mt + used, p.a.begin() + (n + 1) * Mt, std::uint8_t{0x7F});
  }
  for (std::int64_t k = 0; k < K; ++k) {
    std::fill(p.b.begin() + k * Mt + used, p.b.begin() + (k + 1) * Mt, std::uint8_t{0x7F});
  }
  return p;
}

std::int64_t blocks_of(std::int64_t size) { return (size + 127) / 128; }

/// The same operands with 1x128 and 128x128 scales; b's rows of scales padded to a multiple of 4.
inline Problem rows_block_problem(const std::vector<std::int32_t>& offs, std::int64_t M,
                                  std::int64_t N, std::int64_t K, Fill fill) {
  Problem p = rows_problem(offs, M, N, K, fill);
  Random random(2);
  const auto E = static_cast<std::int64_t>(offs.size());
  p.a_block = M, p.b_row = (blocks_of(K) + 3) / 4 * 4, p.b_group = blocks_of(N) * p.b_row;
  p.a_scale.resize(M * blocks_of(K)), p.b_scale.assign(E * p.b_group, NAN);
  const auto scale = [&] { return fill == Fill::kExact ? random.power_of_two() : random.scale(); };
  for (auto& v : p.a_scale) v = scale();
  for (std::int64_t i = 0; i < E * p.b_group; ++i) {
    if (i % p.b_row < blocks_of(K)) p.b_scale[i] = scale();
  }
  std::fill(p.expected.begin(), p.expected.end(), 0.0);
  const auto ends = clamped(offs, M);
  for (std::int64_t g = 0; g < E; ++g) {
    for (std::int64_t m = g ? ends[g - 1] : 0; m < ends[g]; ++m) {
      for (std::int64_t n = 0; n < N; ++n) {
        for (std::int64_t k = 0; k < K; ++k) {
          const double value =
              double{decode_e4m3(p.a[m * K + k])} * double{decode_e4m3(p.b[(g * N + n) * K + k])};
          p.expected[m * N + n] += value * p.a_scale[m + k / 128 * M] *
                                   p.b_scale[g * p.b_group + n / 128 * p.b_row + k / 128];
        }
      }
    }
  }
  const std::int64_t used = ends.empty() ? 0 : ends.back();
  for (std::int64_t i = 0; i < blocks_of(K); ++i) {
    std::fill(p.a_scale.begin() + i * M + used, p.a_scale.begin() + (i + 1) * M, NAN);
  }
  return p;
}

/// `offs`: ends aligned to 128.
inline Problem k_block_problem(const std::vector<std::int32_t>& offs, std::int64_t N,
                               std::int64_t K, std::int64_t Mt, Fill fill) {
  Problem p = k_problem(offs, N, K, Mt, fill);
  Random random(2);
  const auto E = static_cast<std::int64_t>(offs.size());
  p.a_block = N, p.b_block = K;
  p.a_scale.assign(N * blocks_of(Mt), NAN), p.b_scale.assign(K * blocks_of(Mt), NAN);
  const auto scale = [&] { return fill == Fill::kExact ? random.power_of_two() : random.scale(); };
  const auto ends = clamped(offs, Mt);
  const std::int64_t used = ends.empty() ? 0 : blocks_of(ends.back());
  for (std::int64_t i = 0; i < N * used; ++i) p.a_scale[i] = scale();
  for (std::int64_t i = 0; i < K * used; ++i) p.b_scale[i] = scale();
  std::fill(p.expected.begin(), p.expected.end(), 0.0);
  for (std::int64_t g = 0; g < E; ++g) {
    for (std::int64_t m = g ? ends[g - 1] : 0; m < ends[g]; ++m) {
      for (std::int64_t n = 0; n < N; ++n) {
        const double y = double{decode_e4m3(p.a[n * Mt + m])} * p.a_scale[n + m / 128 * N];
        for (std::int64_t k = 0; k < K; ++k) {
          p.expected[(g * N + n) * K + k] +=
              y * decode_e4m3(p.b[k * Mt + m]) * p.b_scale[k + m / 128 * K];
        }
      }
    }
  }
  return p;
}

inline void expect_exact(const Problem& p, const std::vector<std::uint16_t>& actual) {
  ASSERT_EQ(actual.size(), p.expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    // -0 and +0 are both zero.
    const std::uint16_t expected = round_to_bf16(p.expected[i]);
    ASSERT_TRUE(actual[i] == expected || ((actual[i] | expected) & 0x7FFF) == 0)
        << "out[" << static_cast<std::int64_t>(i) / p.out_columns << ", "
        << static_cast<std::int64_t>(i) % p.out_columns << "]: " << from_bf16(actual[i])
        << ", expected " << p.expected[i];
  }
}

inline double snr(const Problem& p, const std::vector<std::uint16_t>& actual) {
  double signal = 0.0, noise = 0.0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double difference = from_bf16(actual[i]) - p.expected[i];
    signal += p.expected[i] * p.expected[i], noise += difference * difference;
  }
  return 10.0 * std::log10(signal / noise);
}

}  // namespace octavo::gpu::testing
