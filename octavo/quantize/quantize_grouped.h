#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "octavo/quantize/quantize.h"
#include "octavo/quantize/scaled_tensor.h"

/// Operands of grouped products: activations whose rows belong to experts by groups, and the
/// experts' weights.
///
/// offs (E), int32: the END offset of each group, as torch._grouped_mm takes it. Group g is the
/// rows from offs[g-1] (0 for the first) to offs[g]; groups may be empty; rows past offs[E-1]
/// belong to none. Values are checked on the CPU. On a GPU they are not read by the host (which
/// would synchronise): every kernel clamps each end to [previous end, M], and never reads or writes
/// outside its tensors. OCTAVO_CHECK_OFFSETS=1 in the environment synchronises and checks them.
namespace octavo {

/// What each group of a transposed layout is aligned to, in columns: 16 where one scale spans the
/// group (products read 16 bytes at a time), and the block otherwise: 32 for MX, 128 for 1x128, so
/// that blocks counted from the group's own start are blocks of the whole matrix, and a product
/// that takes 128 columns at a time meets one scale and no other group.
constexpr std::int64_t group_alignment(const Granularity& granularity) {
  return granularity.block_columns == 0 ? 16 : granularity.block_columns;
}

/// Mt, the columns of a transposed layout: the aligned groups fit whatever their sizes. M rounded
/// up to the alignment a, plus a for each expert; a multiple of 16 (also for c10::SymInt).
template <class Int>
constexpr Int grouped_columns(const Int& m, const Int& experts, const Granularity& granularity) {
  const std::int64_t a = group_alignment(granularity);
  return (m + (a - 1)) / a * a + experts * a;
}

/// Activations (M, K) quantised for grouped products; either layout may be absent.
struct GroupedOperand {
  /// (M, K) as quantize_operand() gives it: scale (M, 1), (M, ceil(K/128)) with strides (1, M), or
  /// (M, ceil(K/32)) e8m0. Rows past the last offset: data 0, scales those of amax 0.
  ScaledTensor rows;
  /// (K, Mt): group g in the columns from offs_transposed[g-1], where a multiple of the alignment
  /// is, zero from its own size up to its aligned end offs_transposed[g]; zero also from the last
  /// aligned end to Mt. Scales by granularity:
  ///   rowwise   (E, K) fp32, row-major: one for each group and column of x; empty group: amax 0
  ///   1x128     (K, Mt / 128) fp32, strides (1, K); blocks of zeros: amax 0
  ///   mx1x32    (K, Mt / 32) e8m0, row-major; blocks of zeros: amax 0
  /// logical_sizes are (K, Mt).
  ScaledTensor transposed;
  /// (E) int32: the groups' ends in the rows layout, clamped where the caller's were bad.
  at::Tensor offs;
  /// (E) int32: the aligned ends in the transposed layout,
  /// offs_transposed[g] = offs_transposed[g-1] + (offs[g] - offs[g-1] rounded up to the alignment).
  /// Defined where transposed is.
  at::Tensor offs_transposed;
};

/// Quantises activations x by groups of rows.
///
/// rows:       data[m,k] = cast(clamp(x[m,k] * inv_scale[block of (m,k)])),                 (M, K)
/// transposed: data[k, start_t(g) + i] = the same of x[start(g) + i, k] with blocks that never span
///             two groups,                                                                (K, Mt)
///
/// x: (M, K) fp32, bf16 or fp16, any strides. offs: (E) int32 on x's device, contiguous, E >= 1.
/// Granularity of each layout: rowwise, 1x128 or mx1x32. Numerics, NaN and Inf as
/// quantize_operand(); a group equals quantize_operand() of its own rows, bit for bit. M or K may
/// be 0. Nothing past the last offset is read. Errors: x not 2-D, other dtype or granularity
/// (tensorwise: names rowwise), offs of another dtype, rank, length or device, MX with a FNUZ
/// format, no layouts; on the CPU, and on GPUs with OCTAVO_CHECK_OFFSETS=1: offsets that are
/// negative, decrease or pass M.
GroupedOperand quantize_grouped_operand(const at::Tensor& x, const at::Tensor& offs,
                                        const OperandSpec& spec);

/// Quantises the experts' weights w (E, N, K), every expert with scales of its own:
///
/// rows:       data (E, N, K), scale (E, granularity.scale_rows(N), granularity.scale_columns(K))
/// transposed: data (E, K, N), scale (E, granularity.scale_rows(K), granularity.scale_columns(N))
///
/// each expert's part being what quantize_operand(w[e]) gives, in the same scale layout: rowwise
/// (E, N, 1) and (E, K, 1), contiguous; tensorwise (E, 1, 1); 128x128 (E, ceil(N/128), ceil(K/128))
/// with rows padded to a multiple of 4; mx1x32 (E, N, ceil(K/32)) e8m0. logical_sizes are data's.
///
/// w: 3-D, fp32, bf16 or fp16, any strides. Granularity of each layout: tensorwise, rowwise,
/// 128x128 or mx1x32. E, N or K may be 0.
/// Errors: w not 3-D, other dtype or granularity, MX with a FNUZ format, no layouts.
QuantizedOperand quantize_expert_weights(const at::Tensor& w, const OperandSpec& spec);

}  // namespace octavo
