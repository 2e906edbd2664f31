#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>

#include "octavo/recipe/recipe.h"

namespace octavo {

/// When float8_linear keeps w's transposed FP8 layout from forward to backward instead of
/// quantising w again. kAuto: kept when M >= N (saving costs N*K bytes, quantising again costs a
/// read of w).
enum class KeepWeightTransposed : std::uint8_t { kAuto, kOn, kOff };

/// y = x . w^T (+ bias) with FP8 products, differentiable.
///
/// x: (..., K) fp32, bf16 or fp16; w: (N, K); bias: (N) or none. y: (..., N) in x's dtype.
/// dx has x's dtype, dw w's, dbias bias's: dbias is the unquantised dy summed over rows in fp32.
/// Backward keeps FP8 operands only (recipes with gw_high_precision keep x itself). Gradients not
/// asked for cost nothing: a frozen w skips the dw product and x's transposed layout.
/// Under autocast x is cast to the autocast dtype, w and bias are not.
/// M = 0, N = 0 and K = 0 give empty or zero results. Deterministic.
/// Errors: sizes that do not match, unsupported dtype or device, recipe errors.
at::Tensor float8_linear(const at::Tensor& x, const at::Tensor& w,
                         const std::optional<at::Tensor>& bias, const Recipe& recipe,
                         KeepWeightTransposed keep = KeepWeightTransposed::kAuto);

// Dispatcher schemas (recipe is Recipe::to_string()'s canonical string):
//   octavo::float8_linear(Tensor x, Tensor w, Tensor? bias, str recipe,
//                         str keep_weight_transposed="auto") -> Tensor
//   octavo::float8_linear_forward(Tensor x, Tensor w, Tensor? bias, str recipe, bool need_dx,
//       bool need_dw, bool keep_weight_transposed)
//       -> (Tensor y, Tensor x_saved, Tensor x_saved_scale, Tensor w_saved, Tensor w_saved_scale)
//   octavo::float8_linear_backward(Tensor dy, Tensor x_saved, Tensor x_saved_scale, Tensor w_saved,
//       Tensor w_saved_scale, ... sizes and dtypes ..., str recipe, bool need_dx, bool need_dw,
//       bool need_dbias) -> (Tensor dx, Tensor dw, Tensor dbias)
//   octavo::quantize(Tensor x, str format, str granularity, ...) and octavo::scaled_mm(...) too.

}  // namespace octavo
