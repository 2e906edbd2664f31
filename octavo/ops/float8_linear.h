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
/// M = 0, N = 0 and K = 0 give empty or zero results. Deterministic. NaN and Inf: docs/numerics.md.
/// Errors: sizes that do not match, unsupported dtype or device, recipe errors. Second derivatives
/// (create_graph) are an error when they are asked for.
at::Tensor float8_linear(const at::Tensor& x, const at::Tensor& w,
                         const std::optional<at::Tensor>& bias, const Recipe& recipe,
                         KeepWeightTransposed keep = KeepWeightTransposed::kAuto);

// The dispatcher operators behind it are declared in ops/library.cpp.

}  // namespace octavo
