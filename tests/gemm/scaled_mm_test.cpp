#include "octavo/gemm/scaled_mm.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "octavo/kernels/counter.h"
#include "tests/gemm/operands.h"

namespace octavo {
namespace {

using testing::bytes_of;
using testing::exact_product;
using testing::random_operand;
using testing::snr_db;

struct Pair {
  Granularity a, b;
};
constexpr Pair kPairs[] = {{kTensor, kTensor}, {kRow, kRow},     {kRow, kTensor},
                           {kTensor, kRow},    {k1x128, k1x128}, {k1x128, k128x128},
                           {k128x128, k1x128}, {kMx, kMx}};

struct Formats {
  Format a, b;
};
constexpr Formats kFormats[] = {
    {Format::kE4M3FN, Format::kE4M3FN},     {Format::kE4M3FN, Format::kE5M2},
    {Format::kE5M2, Format::kE4M3FN},       {Format::kE4M3FNUZ, Format::kE4M3FNUZ},
    {Format::kE4M3FNUZ, Format::kE5M2FNUZ}, {Format::kE5M2FNUZ, Format::kE4M3FNUZ}};

struct Sizes {
  std::int64_t m, n, k;
};
// One, just below and above 16, 32 and 128, primes, thin and wide; (33, 32, 48) and 15 outputs are
// sizes other libraries refuse.
constexpr Sizes kSizes[] = {{1, 1, 1},      {33, 32, 48},   {33, 15, 48}, {15, 33, 127},
                            {127, 17, 129}, {16, 128, 256}, {1, 300, 31}, {97, 1, 1000}};

std::string describe(const Sizes& s, const Pair& p, const Formats& f) {
  return std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k) + " " +
         to_string(p.a) + " . " + to_string(p.b) + " " + std::string(name(f.a)) + " . " +
         std::string(name(f.b));
}

bool exists(const Pair& p, const Formats& f) {
  return !p.a.mx || flavour_of(f.a) == Flavour::kOCP;  // MX is OCP only
}

TEST(ScaledMm, EqualsTheProductOfTheDequantisedOperands) {
  for (const Sizes& size : kSizes) {
    for (const Pair& pair : kPairs) {
      for (const Formats& formats : kFormats) {
        if (!exists(pair, formats)) continue;
        const auto a = random_operand(size.m, size.k, formats.a, pair.a, 1, 1.7);
        const auto b = random_operand(size.n, size.k, formats.b, pair.b, 2, 0.6);
        const std::string what = describe(size, pair, formats);
        const auto expected = exact_product(a, b);

        const at::Tensor fp32 = scaled_mm(a, b, {.out_dtype = at::kFloat});
        ASSERT_EQ(fp32.scalar_type(), at::kFloat);
        ASSERT_EQ(fp32.sizes(), at::IntArrayRef({size.m, size.n})) << what;
        ASSERT_TRUE(fp32.is_contiguous());
        // fp32 sums of up to 1000 terms err by a few 2^-24 of their size: 130 dB and more; a
        // single sum that cancels can lose some of that.
        const double snr = snr_db(fp32, expected);
        EXPECT_TRUE(snr >= 100.0) << what << ": " << snr << " dB";

        // bf16 keeps 8 bits: uniform rounding errors give 50 to 55 dB; here the rounding of the
        // fp32 result must be exact, so it is compared bit by bit.
        const at::Tensor bf16 = scaled_mm(a, b, {.out_dtype = at::kBFloat16});
        ASSERT_EQ(bf16.scalar_type(), at::kBFloat16);
        EXPECT_TRUE(at::equal(bf16, fp32.to(at::kBFloat16))) << what;
        if (size.m * size.n >= 64) {  // a single value's error says little
          const double snr16 = snr_db(bf16, expected);
          EXPECT_TRUE(snr16 >= 50.0) << what << ": " << snr16 << " dB";
        }
        const at::Tensor fp16 = scaled_mm(a, b, {.out_dtype = at::kHalf});
        EXPECT_TRUE(at::equal(fp16, fp32.to(at::kHalf))) << what;
      }
    }
  }
}

TEST(ScaledMm, BiasIsAddedInFp32BeforeTheRounding) {
  for (const Sizes& size : kSizes) {
    for (const Pair& pair : kPairs) {
      const auto a = random_operand(size.m, size.k, Format::kE4M3FN, pair.a, 3);
      const auto b = random_operand(size.n, size.k, Format::kE4M3FN, pair.b, 4);
      const at::Tensor product = scaled_mm(a, b, {.out_dtype = at::kFloat});
      for (at::ScalarType bias_dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        // Every second element of a longer one: a bias may be a view.
        const at::Tensor bias =
            at::linspace(-20.0, 30.0, 2 * size.n).to(bias_dtype).slice(0, 0, 2 * size.n, 2);
        const at::Tensor expected = product + bias.to(at::kFloat);
        const std::string what = describe(size, pair, kFormats[0]);
        for (at::ScalarType out : {at::kFloat, at::kBFloat16, at::kHalf}) {
          const at::Tensor got = scaled_mm(a, b, {.out_dtype = out, .bias = bias});
          EXPECT_TRUE(at::equal(got, expected.to(out))) << what << " " << bias_dtype << " " << out;
        }
        const double snr = snr_db(scaled_mm(a, b, {.out_dtype = at::kFloat, .bias = bias}),
                                  exact_product(a, b, bias));
        EXPECT_TRUE(snr >= 100.0) << what << ": " << snr << " dB";
      }
    }
  }
}

// Small integers sum exactly in fp32, so the documented formula fixes every bit:
// (acc * scale_a) * scale_b, then the bias. scale_a * scale_b first would give other bits.
TEST(ScaledMm, OrderOfScalesIsFixed) {
  const std::int64_t m_size = 19, n_size = 37, k_size = 64;
  auto a = random_operand(m_size, k_size, Format::kE4M3FN, kRow, 1);
  auto b = random_operand(n_size, k_size, Format::kE4M3FN, kRow, 2);
  for (std::int64_t i = 0; i < m_size * k_size; ++i) {
    bytes_of(a)[i] = encode(Format::kE4M3FN, static_cast<float>(i * 7 % 9 - 4));
  }
  for (std::int64_t i = 0; i < n_size * k_size; ++i) {
    bytes_of(b)[i] = encode(Format::kE4M3FN, static_cast<float>(i * 5 % 7 - 3));
  }
  const at::Tensor bias = at::linspace(-1.0, 1.0, n_size);
  const at::Tensor out = scaled_mm(a, b, {.out_dtype = at::kFloat, .bias = bias});
  int other_order_differs = 0;
  for (std::int64_t m = 0; m < m_size; ++m) {
    for (std::int64_t n = 0; n < n_size; ++n) {
      float acc = 0.0f;
      for (std::int64_t k = 0; k < k_size; ++k) {
        acc += decode(Format::kE4M3FN, bytes_of(a)[m * k_size + k]) *
               decode(Format::kE4M3FN, bytes_of(b)[n * k_size + k]);
      }
      const float scale_a = a.scale[m][0].item<float>(), scale_b = b.scale[n][0].item<float>();
      const float scaled = acc * scale_a;
      const float expected = scaled * scale_b + bias[n].item<float>();
      const float scales = scale_a * scale_b;
      other_order_differs += acc * scales + bias[n].item<float>() != expected;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(out[m][n].item<float>()),
                std::bit_cast<std::uint32_t>(expected))
          << "(" << m << ", " << n << ")";
    }
  }
  EXPECT_GT(other_order_differs, 0);  // or this test proves nothing
}

TEST(ScaledMm, EmptySizes) {
  for (const Sizes& size : {Sizes{0, 5, 7}, {5, 0, 7}, {5, 7, 0}, {0, 0, 0}, {0, 3, 0}}) {
    for (const Pair& pair : kPairs) {
      const auto a = random_operand(size.m, size.k, Format::kE4M3FN, pair.a, 1);
      const auto b = random_operand(size.n, size.k, Format::kE4M3FN, pair.b, 2);
      for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const at::Tensor out = scaled_mm(a, b, {.out_dtype = dtype});
        EXPECT_TRUE(at::equal(out, at::zeros({size.m, size.n}, dtype)));
        EXPECT_EQ(out.scalar_type(), dtype);
        const at::Tensor bias = at::linspace(0.1, 9.0, size.n).set_requires_grad(true);
        const at::Tensor with_bias = scaled_mm(a, b, {.out_dtype = dtype, .bias = bias});
        EXPECT_TRUE(at::equal(with_bias, bias.detach().to(dtype).expand({size.m, size.n})));
        EXPECT_TRUE(with_bias.is_contiguous());
        EXPECT_FALSE(with_bias.requires_grad());
      }
    }
  }
}

// data may be zero-padded (here: with NaN, to prove that it is not read) or a slice of rows.
TEST(ScaledMm, PaddedData) {
  for (const Pair& pair : kPairs) {
    auto a = random_operand(33, 70, Format::kE4M3FN, pair.a, 1);
    auto b = random_operand(15, 70, Format::kE4M3FN, pair.b, 2);
    const at::Tensor plain = scaled_mm(a, b, {.out_dtype = at::kFloat});
    for (ScaledTensor* operand : {&a, &b}) {
      const at::Tensor padded = at::empty({48, 80}, operand->data.options());
      padded.view(at::kByte).fill_(limits(operand->format()).nan_byte);
      padded.view(at::kByte)
          .narrow(0, 0, operand->rows())
          .narrow(1, 0, 70)
          .copy_(operand->data.view(at::kByte));
      operand->data = padded;
    }
    EXPECT_TRUE(at::equal(scaled_mm(a, b, {.out_dtype = at::kFloat}), plain));
  }
}

// The rows of `out` that hold a non-finite value, as "3 " or "0 1 2 ".
std::string non_finite(const at::Tensor& out, int dim) {
  std::string rows;
  const at::Tensor bad = out.to(at::kFloat).isfinite().logical_not();
  const at::Tensor any = bad.any(1 - dim), all = bad.all(1 - dim);
  for (std::int64_t i = 0; i < out.size(dim); ++i) {
    if (any[i].item<bool>()) rows += std::to_string(i) + (all[i].item<bool>() ? " " : "(part) ");
  }
  return rows;
}

TEST(ScaledMm, NonFiniteDataReachesItsRowOrColumnOnly) {
  const auto byte_of = [](Format format, bool infinity) {
    return infinity ? std::uint8_t{0x7C} : limits(format).nan_byte;
  };
  for (const Pair& pair : kPairs) {
    for (const Formats& formats : kFormats) {
      if (!exists(pair, formats)) continue;
      for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        for (bool infinity : {false, true}) {
          if (infinity && !limits(formats.a).has_infinity) continue;
          auto a = random_operand(9, 150, formats.a, pair.a, 1);
          const auto b = random_operand(11, 150, formats.b, pair.b, 2);
          bytes_of(a)[4 * 150 + 140] = byte_of(formats.a, infinity);
          const at::Tensor out = scaled_mm(a, b, {.out_dtype = dtype});
          EXPECT_EQ(non_finite(out, 0), "4 ") << describe({9, 11, 150}, pair, formats);
        }
        for (bool infinity : {false, true}) {
          if (infinity && !limits(formats.b).has_infinity) continue;
          const auto a = random_operand(9, 150, formats.a, pair.a, 1);
          auto b = random_operand(11, 150, formats.b, pair.b, 2);
          bytes_of(b)[10 * 150] = byte_of(formats.b, infinity);
          const at::Tensor out = scaled_mm(a, b, {.out_dtype = dtype});
          EXPECT_EQ(non_finite(out, 1), "10 ") << describe({9, 11, 150}, pair, formats);
        }
      }
    }
  }
}

// What one NaN or Inf in x leaves behind: a NaN scale, or scale Inf over zeros and one NaN byte.
TEST(ScaledMm, NonFiniteScaleReachesItsBlockOnly) {
  const float inf = std::numeric_limits<float>::infinity();
  for (float scale : {std::numeric_limits<float>::quiet_NaN(), inf}) {
    auto a = random_operand(9, 150, Format::kE4M3FN, kRow, 1);
    const auto b = random_operand(11, 150, Format::kE4M3FN, kRow, 2);
    a.scale[3][0] = scale;
    EXPECT_EQ(non_finite(scaled_mm(a, b, {}), 0), "3 ");
    EXPECT_EQ(non_finite(scaled_mm(b, a, {}), 1), "3 ");

    auto a128 = random_operand(9, 150, Format::kE4M3FN, k1x128, 1);
    const auto b128 = random_operand(11, 150, Format::kE4M3FN, k128x128, 2);
    a128.scale[5][1] = scale;
    EXPECT_EQ(non_finite(scaled_mm(a128, b128, {}), 0), "5 ");
    EXPECT_EQ(non_finite(scaled_mm(b128, a128, {}), 1), "5 ");
  }
  auto a = random_operand(9, 150, Format::kE4M3FN, kMx, 1);
  const auto b = random_operand(11, 150, Format::kE4M3FN, kMx, 2);
  static_cast<std::uint8_t*>(a.scale.data_ptr())[7 * 5 + 2] = kE8M0NaN;
  EXPECT_EQ(non_finite(scaled_mm(a, b, {}), 0), "7 ");
  EXPECT_EQ(non_finite(scaled_mm(b, a, {}), 1), "7 ");
}

// Decoding and the epilogue are split by rows, so threads cannot change a bit of them. MKL's own
// sums are compared too where it splits rows and columns only; for few outputs and a long K it
// may split K, and then the library promises equal bits for equal threads only.
TEST(ScaledMm, OneAndTwoThreadsAgree) {
  const int threads = at::get_num_threads();
  for (const Sizes& size : {Sizes{512, 384, 128}, {2048, 128, 128}, {100, 300, 333}}) {
    for (const Pair& pair : kPairs) {
      const auto a = random_operand(size.m, size.k, Format::kE4M3FN, pair.a, 1);
      const auto b = random_operand(size.n, size.k, Format::kE4M3FN, pair.b, 2);
      const at::Tensor bias = at::linspace(-1.0, 1.0, size.n);
      for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        at::set_num_threads(1);
        const at::Tensor one = scaled_mm(a, b, {.out_dtype = dtype, .bias = bias});
        at::set_num_threads(2);
        const at::Tensor two = scaled_mm(a, b, {.out_dtype = dtype, .bias = bias});
        EXPECT_TRUE(at::equal(one, two)) << describe(size, pair, kFormats[0]);
      }
    }
  }
  at::set_num_threads(threads);
}

TEST(ScaledMm, CallersModesDoNotChangeTheProduct) {
  const auto a = random_operand(33, 64, Format::kE4M3FN, kRow, 1);
  const auto b = random_operand(32, 64, Format::kE4M3FN, kRow, 2);
  const at::Tensor plain = scaled_mm(a, b, {.out_dtype = at::kFloat});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor under_autocast = scaled_mm(a, b, {.out_dtype = at::kFloat});
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(at::equal(under_autocast, plain));
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(at::equal(scaled_mm(a, b, {.out_dtype = at::kFloat}), plain));
  }
}

// On CPUs with bf16 units "medium" makes at::mm multiply in bf16, once the product is large enough:
// 52 dB are left of 130 on a Sapphire Rapids.
TEST(ScaledMm, ReducedMatmulPrecisionDoesNotReachIt) {
  const auto a = random_operand(512, 512, Format::kE4M3FN, kRow, 1);
  const auto b = random_operand(512, 512, Format::kE4M3FN, kRow, 2);
  const at::Tensor plain = scaled_mm(a, b, {.out_dtype = at::kFloat});
  auto& context = at::globalContext();
  for (const char* precision : {"high", "medium"}) {
    context.setFloat32MatmulPrecision(precision);
    const auto before = context.float32MatmulPrecision();
    const at::Tensor reduced = scaled_mm(a, b, {.out_dtype = at::kFloat});
    EXPECT_EQ(context.float32MatmulPrecision(), before);
    EXPECT_TRUE(at::equal(reduced, plain)) << precision;
  }
  context.setFloat32MatmulPrecision("highest");
}

TEST(ScaledMm, CountsOneDecodeAnOperandAndOneEpilogueAProduct) {
  auto& counters = kernels::counters();
  const auto count = [&](const Pair& pair, Sizes size, const MatmulOptions& options) {
    const auto a = random_operand(size.m, size.k, Format::kE4M3FN, pair.a, 1);
    const auto b = random_operand(size.n, size.k, Format::kE4M3FN, pair.b, 2);
    const std::uint64_t decode = counters.decode, epilogue = counters.epilogue;
    scaled_mm(a, b, options);
    return std::pair<std::uint64_t, std::uint64_t>(counters.decode - decode,
                                                   counters.epilogue - epilogue);
  };
  using Counts = std::pair<std::uint64_t, std::uint64_t>;
  EXPECT_EQ(count({kRow, kRow}, {600, 400, 128}, {}), Counts(2, 1));
  EXPECT_EQ(count({kRow, kRow}, {600, 400, 128}, {.out_dtype = at::kFloat}), Counts(2, 1));
  EXPECT_EQ(count({k1x128, k128x128}, {64, 64, 256}, {}), Counts(2, 1));
  // The scale is in the operands and fp32 needs no rounding: no pass at all.
  EXPECT_EQ(count({kMx, kMx}, {64, 64, 256}, {.out_dtype = at::kFloat}), Counts(2, 0));
  EXPECT_EQ(count({kRow, kRow}, {0, 64, 256}, {}), Counts(0, 0));
  EXPECT_EQ(count({kRow, kRow}, {64, 64, 0}, {}), Counts(0, 0));
}

}  // namespace
}  // namespace octavo
