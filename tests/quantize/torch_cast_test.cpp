// Octavo's codecs against torch's casts: every bf16 and every fp16, many fp32, every byte.
//
// torch 2.11 does not saturate, torch 2.15 saturates e4m3fn alone, so inputs are clamped to +-max
// first; what torch does beyond max is compared with the Overflow that it has there. Named
// difference: torch keeps the sign of a NaN in e4m3fn and e5m2, Octavo writes the canonical byte.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "octavo/formats/codec.h"
#include "octavo/formats/e8m0.h"
#include "octavo/quantize/scaled_tensor.h"

namespace octavo {
namespace {

class TorchCastTest : public ::testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, TorchCastTest, ::testing::ValuesIn(kAllFormats),
                         [](const auto& info) { return std::string(name(info.param)); });

/// All 65,536 values of a 16-bit type, in order of their bits.
at::Tensor every_half(at::ScalarType dtype) {
  return at::arange(65536, at::kInt).to(at::kUInt16).view(dtype);
}

/// Random fp32 bit patterns, half of them with exponents around the formats' ranges.
at::Tensor random_fp32(std::int64_t count) {
  at::Tensor x = at::empty({count}, at::kInt);
  auto* out = x.mutable_data_ptr<std::int32_t>();
  std::mt19937 random(11);
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t bits = static_cast<std::uint32_t>(random());
    if (i % 2 == 1) bits = (bits & 0x807FFFFFu) | (107 + (bits >> 23) % 40) << 23;
    out[i] = static_cast<std::int32_t>(bits);
  }
  return x.view(at::kFloat);
}

/// Bytes of `x` cast by torch against encode() of the same fp32 values.
void compare_with_torch(const at::Tensor& x, Format format, Overflow overflow) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor bytes = x.to(scalar_type(format)).view(at::kByte);
  const float* in = wide.const_data_ptr<float>();
  const auto* theirs = bytes.const_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const std::uint8_t ours = encode(format, in[i], overflow);
    // The named difference: the same NaN, or the one with its sign bit set.
    const bool nan_sign = std::isnan(decode(format, ours)) && std::isnan(in[i]) &&
                          flavour_of(format) == Flavour::kOCP &&
                          theirs[i] == (ours | (std::signbit(in[i]) ? 0x80 : 0));
    // Without a NaN at the input: e4m3fn's overflow has a sign in torch too.
    const bool overflow_nan = overflow == Overflow::kNonFinite && format == Format::kE4M3FN &&
                              ours == limits(format).nan_byte && (theirs[i] & 0x7F) == ours;
    if (ours != theirs[i] && !nan_sign && !overflow_nan) {
      ASSERT_EQ(static_cast<int>(ours), static_cast<int>(theirs[i]))
          << name(format) << " of " << in[i] << " (" << x.scalar_type() << ")";
    }
  }
}

at::Tensor clamped(const at::Tensor& x, Format format) {
  const double max = limits(format).max;
  return x.clamp(-max, max);
}

/// What this torch does beyond max.
Overflow overflow_of_torch(Format format) {
  const at::Tensor beyond =
      at::full({1}, 2 * limits(format).max, at::kFloat).to(scalar_type(format)).to(at::kFloat);
  return std::isfinite(beyond.item<float>()) ? Overflow::kSaturate : Overflow::kNonFinite;
}

TEST_P(TorchCastTest, EveryBf16) {
  const at::Tensor x = every_half(at::kBFloat16);
  compare_with_torch(clamped(x, GetParam()), GetParam(), Overflow::kSaturate);
  compare_with_torch(x, GetParam(), overflow_of_torch(GetParam()));
}

TEST_P(TorchCastTest, EveryFp16) {
  const at::Tensor x = every_half(at::kHalf);
  compare_with_torch(clamped(x, GetParam()), GetParam(), Overflow::kSaturate);
  compare_with_torch(x, GetParam(), overflow_of_torch(GetParam()));
}

TEST_P(TorchCastTest, RandomFp32) {
  const at::Tensor x = random_fp32(2'000'000);
  compare_with_torch(clamped(x, GetParam()), GetParam(), Overflow::kSaturate);
  compare_with_torch(x, GetParam(), overflow_of_torch(GetParam()));
}

// tests/field_cases.md: all 256 bytes into fp32, bf16 and fp16. Every value fits all three, so
// torch's decode through each equals ours.
TEST_P(TorchCastTest, EveryByteDecodes) {
  const at::Tensor bytes = at::arange(256, at::kInt).to(at::kByte);
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor theirs = bytes.view(scalar_type(GetParam())).to(dtype).to(at::kFloat);
    for (int byte = 0; byte < 256; ++byte) {
      const float ours = decode(GetParam(), static_cast<std::uint8_t>(byte));
      const float torch = theirs.const_data_ptr<float>()[byte];
      if (std::isnan(ours)) {
        EXPECT_TRUE(std::isnan(torch)) << byte;
      } else {
        EXPECT_EQ(internal::bits_of(ours), internal::bits_of(torch)) << byte << " " << dtype;
      }
    }
  }
}

TEST(TorchCastE8M0, EveryCodeDecodes) {
  const at::Tensor codes = at::arange(256, at::kInt).to(at::kByte);
  const at::Tensor theirs = codes.view(at::kFloat8_e8m0fnu).to(at::kFloat);
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(theirs.const_data_ptr<float>()[code], decode_e8m0(static_cast<std::uint8_t>(code)))
        << code;
  }
  EXPECT_TRUE(std::isnan(theirs.const_data_ptr<float>()[255]));
}

TEST(TorchCastE8M0, NearestEncode) {
  for (const at::Tensor& x : {every_half(at::kBFloat16).to(at::kFloat), random_fp32(1'000'000)}) {
    const at::Tensor codes = x.to(at::kFloat8_e8m0fnu).view(at::kByte);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const float value = x.const_data_ptr<float>()[i];
      ASSERT_EQ(encode_e8m0_nearest(value), codes.const_data_ptr<std::uint8_t>()[i]) << value;
    }
  }
}

}  // namespace
}  // namespace octavo
