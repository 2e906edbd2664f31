#pragma once

#include <cstdint>

#include "octavo/formats/format.h"
#include "octavo/formats/scaling.h"

namespace octavo::kernels {

/// The element types of an operand before it is quantised.
enum class HighPrecision : std::uint8_t { kFloat32, kBFloat16, kFloat16 };

/// Bytes of one element.
constexpr std::int64_t bytes_of(HighPrecision type) {
  return type == HighPrecision::kFloat32 ? 4 : 2;
}

/// The value whose bit pattern is `bits` (the low 16 bits for bf16 and fp16), exact in fp32; a NaN
/// stays a NaN.
constexpr float value_of(HighPrecision type, std::uint32_t bits) {
  if (type == HighPrecision::kFloat32) return internal::float_of(bits);
  if (type == HighPrecision::kBFloat16) return internal::float_of(bits << 16);
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1Fu, mantissa = bits & 0x3FFu;
  if (exponent == 0) {  // subnormal: mantissa * 2^-24
    const float value = static_cast<float>(mantissa) * internal::float_of(103u << 23);
    return internal::float_of(internal::bits_of(value) | sign);
  }
  const std::uint32_t fp32_exponent = exponent == 0x1Fu ? 0xFFu : exponent + 112u;
  return internal::float_of(sign | fp32_exponent << 23 | mantissa << 13);
}

/// fp32 to bf16's bits, to nearest even; magnitudes that round beyond it become infinite and NaN is
/// the quiet NaN 0x7FC0.
OCTAVO_HOST_DEVICE constexpr std::uint16_t bfloat16_bits(float x) {
  const std::uint32_t bits = internal::bits_of(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0u;
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

/// The larger of two magnitudes, NaN above all: their bits order like the values.
constexpr float larger_magnitude(float a, float b) {
  return internal::bits_of(a) < internal::bits_of(b) ? b : a;
}

/// An operand x (M, K) in memory. Strides count elements; a column stride of 1 is the fast case.
struct ConstMatrix {
  const void* data = nullptr;
  HighPrecision type = HighPrecision::kFloat32;
  std::int64_t rows = 0;     ///< M
  std::int64_t columns = 0;  ///< K
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 1;
};

/// The blocks that share one scale, as rows x columns of x itself. A transposed layout's
/// granularity is turned into these, so its rowwise (one scale per row of x^T) is kColumn here.
enum class Blocks : std::uint8_t {
  kWhole,    ///< one scale
  kRow,      ///< one per row of x
  kColumn,   ///< one per column of x
  k1x128,    ///< fp32 scales, computed by the pass that casts; the last block of a row or column
  k128x1,    ///< may be short
  k128x128,  //
  kMx1x32,   ///< e8m0 scales, computed by the pass that casts
  kMx32x1,
};

/// Where one layout of x goes and how it is scaled.
struct LayoutTarget {
  Blocks blocks = Blocks::kWhole;
  Format format = Format::kE4M3FN;
  ScaleRounding scale_rounding = ScaleRounding::kNone;
  MxRounding mx_rounding = MxRounding::kRceil;
  std::uint8_t* data = nullptr;  ///< the layout's bytes, row-major
  std::int64_t stride = 0;       ///< bytes from one of its rows to the next
  /// kWhole (1), kRow (M) and kColumn (K): known before the pass.
  const float* inv_scale = nullptr;
  /// Blocks whose scales the pass computes: fp32 scales or e8m0 codes are written here, the scale
  /// of block (i, j) of x's rows x columns at [i * scale_row_stride + j * scale_column_stride].
  void* scale = nullptr;
  std::int64_t scale_row_stride = 0;
  std::int64_t scale_column_stride = 0;
};

}  // namespace octavo::kernels
