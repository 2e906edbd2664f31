#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/ops/float8_linear.h"
#include "octavo/recipe/recipe.h"

namespace octavo {

struct GroupedLinearOptions {
  KeepWeightTransposed keep_weight_transposed = KeepWeightTransposed::kAuto;
  /// quantize_weight(w, recipe), or nullptr. The bits are those of a call without it as long as w
  /// is what it was: nobody checks that. keep_weight_transposed means nothing then.
  const QuantizedLayouts* weight = nullptr;
  /// w.grad(), contiguous and of w's dtype, or undefined: as Float8LinearOptions::accumulate_into,
  /// but the bits are those of autograd's own sum on every device.
  at::Tensor accumulate_into = {};
};

/// y[m,:] = x[m,:] . w[g]^T for the rows m of group g, with FP8 products, differentiable: the
/// linear layers of E experts, whose tokens lie together by groups.
///
/// x: (M, K) fp32, bf16 or fp16, sorted by expert; w: (E, N, K), of its own dtype; offs: (E) int32,
/// END offset of each group (quantize/quantize_grouped.h says how bad ones are treated); y: (M, N)
/// in x's dtype. dx has x's dtype, dw (E, N, K) w's. Rows past the last offset: zero in y and dx,
/// and they count in no dw. An expert without tokens: dw exactly zero.
///
/// Gate and up are one call: stack them as w (E, 2F, K), so that x is quantised once (and once for
/// dw), dx is one product that sums both, and swiglu() takes y (M, 2F) as it is. Scales are per
/// output row, 128x128 or 1x32 blocks: the same as those of two calls (128x128: where F is a
/// multiple of 128).
///
/// Recipes: rowwise, rowwise_with_gw_hp (dw in a high-precision grouped product), blockwise and
/// mxfp8, with scales of each expert and each group; tensorwise is an error that names rowwise.
/// fast_accumulation is all unless the recipe says otherwise (Recipe::resolve_experts()).
/// Backward keeps FP8 operands only, as float8_linear(); w's transposed layout (E K N bytes)
/// is kept where M >= N, or as the option says. Gradients not asked for cost nothing. Under
/// autocast x is cast, w is not. Second derivatives are an error when they are asked for.
/// Deterministic. Errors: sizes that do not match, unsupported dtype or device, offs, recipe
/// errors.
at::Tensor float8_grouped_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offs,
                                 const Recipe& recipe, const GroupedLinearOptions& options = {});

}  // namespace octavo
