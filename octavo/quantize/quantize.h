#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "octavo/formats/scaling.h"
#include "octavo/quantize/amaxes.h"
#include "octavo/quantize/granularity.h"
#include "octavo/quantize/scaled_tensor.h"

namespace octavo {

/// How one layout of an operand is quantised.
struct LayoutSpec {
  Format format = Format::kE4M3FN;
  Granularity granularity = Granularity::rowwise();
  ScaleRounding scale_rounding = ScaleRounding::kNone;  ///< fp32 scales
  MxRounding mx_rounding = MxRounding::kRceil;          ///< e8m0 scales

  friend constexpr bool operator==(const LayoutSpec&, const LayoutSpec&) = default;
};

/// Which tensors of a small GPU operand come in one allocation, the kernels' scratch with them:
/// those that are dropped together. Allocating each by itself takes the host of a small linear
/// longer than the launches do. Large operands, and the CPU's, are allocated tensor by tensor.
enum class Together : std::uint8_t { kNone, kRows, kBoth };

/// Which layouts of an operand are wanted, and how each is quantised. An absent layout costs
/// nothing.
struct OperandSpec {
  std::optional<LayoutSpec> rows = {};
  std::optional<LayoutSpec> transposed = {};
  Together together = Together::kNone;
  /// The operand's largest magnitudes where they are known, or those of a larger matrix of which it
  /// is a part: whole-tensor, whole-row and whole-column scales follow from them without a read to
  /// find them, if all that the layouts ask for are there. Nobody checks the values: larger
  /// elements saturate, and a NaN or Inf wants an amax that is one.
  Amaxes amax = {};
};

/// Quantises the operand `x` into the wanted layouts.
///
/// rows:       data[m,k] = cast(clamp(x[m,k] * inv_scale[block of (m,k)])),  (M, K)
/// transposed: data[k,m] = the same of x[m,k] with the transposed layout's own blocks,  (K, M)
///
/// x: 2-D, fp32, bf16 or fp16, any strides (views, transposes, stride 0). x is read once for block
/// and MX scales, twice (amax, then cast) for whole-row, whole-column and whole-tensor scales; once
/// where spec.amax has what these follow from.
/// Numerics: docs/numerics.md. Empty x: empty data; scales of spec.amax, or of amax 0.
/// A NaN or Inf makes its own block non-finite and changes no other block.
/// Errors: x not 2-D, other dtype, MX with a FNUZ format, an operand spec without layouts, amaxes
/// of another size, dtype or device.
QuantizedOperand quantize_operand(const at::Tensor& x, const OperandSpec& spec);

}  // namespace octavo
