// Scales against the torch expressions torchao 0.18 computes them with, for every amax a bf16 or
// fp16 tensor can have, and the named differences: places where those expressions, not Octavo's,
// leave the formula.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "octavo/formats/scaling.h"

namespace octavo {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Every non-negative value of a 16-bit type, NaN and Inf too, as fp32.
at::Tensor every_amax(at::ScalarType dtype) {
  return at::arange(32768, at::kInt).to(at::kUInt16).view(dtype).to(at::kFloat);
}

/// inv_scale as tensor operations: max / clamp(fp64(amax), 1e-12), then 2^floor(log2(.)).
at::Tensor torch_inv_scale(const at::Tensor& amax, Format format, ScaleRounding rounding) {
  const at::Tensor inv_scale =
      (at::scalar_tensor(limits(format).max, at::kDouble) / amax.to(at::kDouble).clamp_min(1e-12))
          .to(at::kFloat);
  return rounding == ScaleRounding::kNone ? inv_scale : at::exp2(at::floor(at::log2(inv_scale)));
}

bool same(float a, float b) {
  return internal::bits_of(a) == internal::bits_of(b) || (std::isnan(a) && std::isnan(b));
}

TEST(TorchScale, EveryBf16AndFp16Amax) {
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor amax = every_amax(dtype);
    for (Format format : kAllFormats) {
      for (ScaleRounding rounding : {ScaleRounding::kNone, ScaleRounding::kPowerOfTwo}) {
        const at::Tensor theirs = torch_inv_scale(amax, format, rounding);
        for (std::int64_t i = 0; i < amax.numel(); ++i) {
          const float value = amax.const_data_ptr<float>()[i];
          const float ours = inv_scale_of(value, format, rounding);
          if (!same(ours, theirs.const_data_ptr<float>()[i])) {
            ASSERT_EQ(ours, theirs.const_data_ptr<float>()[i])
                << name(format) << " " << name(rounding) << " amax " << value;
          }
        }
      }
    }
  }
}

/// MX codes as tensor operations on the bits of amax (FLOOR, CEIL, EVEN) or by way of log2 (RCEIL).
at::Tensor torch_mx_code(const at::Tensor& amax, Format format, MxRounding rounding) {
  const FormatLimits f = limits(format);
  if (rounding == MxRounding::kRceil) {
    const at::Tensor descale = amax / f.max;
    return at::ceil(at::log2(descale)).clamp(-127, 127) + 127;
  }
  at::Tensor bits = amax.view(at::kInt);
  if (rounding == MxRounding::kEven) bits = bits + (1 << (22 - f.mantissa_bits));
  at::Tensor exponent = at::bitwise_right_shift(bits, 23);
  if (rounding == MxRounding::kCeil) exponent = exponent + (at::bitwise_and(bits, 0x7FFFFF) > 0);
  return (exponent - f.max_exponent).clamp(0, 255).to(at::kFloat);
}

TEST(TorchScale, EveryBf16AndFp16MxCode) {
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor all = every_amax(dtype);
    // Finite blocks above the smallest scales; below them log2 of a subnormal decides.
    const at::Tensor amax = all.masked_select(at::logical_and(all >= 0x1p-117, all < kInf));
    ASSERT_GT(amax.numel(), 30000);
    for (Format format : {Format::kE4M3FN, Format::kE5M2}) {
      for (MxRounding rounding :
           {MxRounding::kFloor, MxRounding::kCeil, MxRounding::kEven, MxRounding::kRceil}) {
        const at::Tensor theirs = torch_mx_code(amax, format, rounding);
        for (std::int64_t i = 0; i < amax.numel(); ++i) {
          const float value = amax.const_data_ptr<float>()[i];
          ASSERT_EQ(mx_code_of(value, format, rounding), theirs.const_data_ptr<float>()[i])
              << name(format) << " " << name(rounding) << " amax " << value;
        }
      }
    }
  }
}

// A named difference: just above 448 * 2^-k an fp32 log2 returns a whole number, and inv_scale
// doubles: amax * inv_scale is then above the format's maximum and clamped.
TEST(TorchScaleDifferences, PowerOfTwoOfAnFp32Amax) {
  const float amax = std::nextafter(1.75f, 2.0f);
  const at::Tensor theirs =
      torch_inv_scale(at::full({1}, amax, at::kFloat), Format::kE4M3FN, ScaleRounding::kPowerOfTwo);
  EXPECT_EQ(theirs.item<float>(), 256.0f);
  EXPECT_EQ(inv_scale_of(amax, Format::kE4M3FN, ScaleRounding::kPowerOfTwo), 128.0f);
}

// A named difference: just above 448 * 2^k the log2 of RCEIL loses the excess, and the block's
// largest element is clipped.
TEST(TorchScaleDifferences, RceilOfAnFp32Amax) {
  const float amax = std::nextafter(std::ldexp(448.0f, 20), kInf);
  const at::Tensor theirs =
      torch_mx_code(at::full({1}, amax, at::kFloat), Format::kE4M3FN, MxRounding::kRceil);
  EXPECT_EQ(theirs.item<float>(), 147.0f);
  EXPECT_EQ(mx_code_of(amax, Format::kE4M3FN, MxRounding::kRceil), 148);
}

// A named difference: an Inf block has code 255 here, as the OCP MX specification's conversion
// has; the clamped exponent of the torch expression is a number.
TEST(TorchScaleDifferences, InfBlocksInMx) {
  const at::Tensor theirs =
      torch_mx_code(at::full({1}, kInf, at::kFloat), Format::kE4M3FN, MxRounding::kFloor);
  EXPECT_EQ(theirs.item<float>(), 247.0f);
  EXPECT_EQ(mx_code_of(kInf, Format::kE4M3FN, MxRounding::kFloor), 255);
}

}  // namespace
}  // namespace octavo
