#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "octavo/recipe/recipe.h"

namespace octavo {

/// When float8_linear keeps w's transposed FP8 layout from forward to backward instead of
/// quantising w again. kAuto: kept when M >= N (saving costs N*K bytes, quantising again costs a
/// read of w); kept too when M or N is symbolic (torch.compile with dynamic shapes), so that one
/// graph serves every length. Both ways give the same bits.
enum class KeepWeightTransposed : std::uint8_t { kAuto, kOn, kOff };

/// Both layouts of a matrix (R, C) as they cross the dispatcher: FP8 bytes (uint8) and flat scales
/// (ops/scale_layout.h; e8m0 as uint8). Undefined where a layout is not wanted.
struct QuantizedLayouts {
  at::Tensor rows;              ///< (R, C)
  at::Tensor rows_scale;        ///< flat
  at::Tensor transposed;        ///< (C, R)
  at::Tensor transposed_scale;  ///< flat
};

/// What float8_linear makes of w (N, K) by itself, or float8_grouped_linear of experts' w (E, N,
/// K), both layouts, to be made once and given to several calls. Not differentiable: dw comes from
/// the linear's own w. amax: that of a w (N, K) where it is known
/// (Float8LinearOptions::weight_amax). Errors: as the linear's.
QuantizedLayouts quantize_weight(const at::Tensor& w, const Recipe& recipe,
                                 const at::Tensor& amax = {});

/// What float8_linear makes of x (..., K) by itself, seen as (M, K): rows, and transposed where
/// `need_dw` and the recipe's dw product is in FP8. For linears that read the same x (q, k and v;
/// gate and up) by the same recipe. Not differentiable, as quantize_weight.
QuantizedLayouts quantize_input(const at::Tensor& x, const Recipe& recipe, bool need_dw);

struct Float8LinearOptions {
  KeepWeightTransposed keep_weight_transposed = KeepWeightTransposed::kAuto;
  /// quantize_weight(w, recipe), or nullptr. The bits are those of a call without it as long as w
  /// is what it was: nobody checks that. keep_weight_transposed means nothing then.
  const QuantizedLayouts* weight = nullptr;
  /// quantize_input(x, recipe, whether w requires a gradient), or nullptr: likewise for x. Only
  /// while a graph is recorded; not under autocast, which would cast x.
  const QuantizedLayouts* input = nullptr;
  /// w.grad(), contiguous and of w's dtype, or undefined: backward adds dw to it inside the product
  /// where the backend can, and autograd gets no gradient of w. Hooks of w and whoever else looks
  /// at its gradients (DDP, FSDP) see nothing of it, so this is for a trainer that owns w. On the
  /// CPU the bits are those of autograd's own sum; cuBLASLt rounds product and sum once, not twice.
  at::Tensor accumulate_into = {};
  /// The largest magnitude of w, one fp32 number on its device, or undefined: whole-tensor scales
  /// of w follow from it without a read, in backward too. Nobody checks its value; memory that is
  /// written again holds the amax of what w then is. Taken where a graph is recorded without
  /// autocast, left alone elsewhere.
  at::Tensor weight_amax = {};
};

/// y = x . w^T (+ bias) with FP8 products, differentiable.
///
/// x: (..., K) fp32, bf16 or fp16; w: (N, K), bias: (N) or none, fp32, bf16 or fp16 each of its
/// own. y: (..., N) in x's dtype. dx has x's dtype, dw w's, dbias bias's; dbias is the unquantised
/// dy summed over rows in fp32.
/// Leading dimensions are flattened by a view; only where none exists (say x.transpose(0, 1) of a
/// 3-D x) are they copied. Within the last two dimensions every stride is taken as it is.
/// Backward keeps FP8 operands only: x transposed, and w transposed or w itself
/// (KeepWeightTransposed). Recipes with dw in high precision keep x itself.
/// Gradients not asked for cost nothing: a frozen w skips the dw product and x's transposed layout.
/// Under autocast x is cast to the autocast dtype, w and bias are not.
/// Grad mode, no-grad and inference mode give the same bits.
/// A weight that is quantised already is not quantised again: Float8LinearOptions::weight.
/// M = 0, N = 0 and K = 0 give empty or zero results. Deterministic. NaN and Inf: docs/numerics.md.
/// Errors: sizes that do not match, unsupported dtype or device, recipe errors. Second derivatives
/// (create_graph) are an error when they are asked for.
at::Tensor float8_linear(const at::Tensor& x, const at::Tensor& w,
                         const std::optional<at::Tensor>& bias, const Recipe& recipe,
                         const Float8LinearOptions& options = {});

// The dispatcher operators behind it are declared in ops/library.cpp.

}  // namespace octavo
