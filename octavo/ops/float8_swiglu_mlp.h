#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "octavo/ops/float8_linear.h"
#include "octavo/recipe/recipe.h"

namespace octavo {

struct Float8SwigluMlpOptions {
  /// kAuto: kept when 2 M >= F (and where M or F is symbolic): what keeping costs is less than the
  /// silu(gate) that three operators would keep and this one does not. For all three weights.
  KeepWeightTransposed keep_weight_transposed = KeepWeightTransposed::kAuto;
  /// Quantise h and its gradients in the pass that computes them, where their scales need no other,
  /// and find the amaxes of other scales in it (quantize/quantize_produced.h); false writes and
  /// then quantises them. The bits are the same.
  bool fuse = true;
  /// quantize_input(x, recipe, whether the weights require gradients), or nullptr: as
  /// Float8LinearOptions's.
  const QuantizedLayouts* input = nullptr;
  /// Of gate, up and down, as Float8LinearOptions's: quantised already, or the gradient to add to.
  /// Only while a graph is recorded; not under autocast.
  std::array<const QuantizedLayouts*, 3> weights = {};
  std::array<at::Tensor, 3> accumulate_into = {};
  std::array<at::Tensor, 3> weight_amaxes = {};  ///< as Float8LinearOptions::weight_amax
};

/// y = (silu(x . w_gate^T) * (x . w_up^T)) . w_down^T with FP8 products, differentiable: a Llama
/// block's network as one operation.
///
/// x: (..., D); w_gate, w_up: (F, D); w_down: (D', F); fp32, bf16 or fp16, the weights of one
/// dtype. y: (..., D') in x's dtype. What three float8_linear() and swiglu() give, but: x is
/// quantised once for gate and up; h = silu(gate) * up goes to the last product, and the gradients
/// of gate and up to theirs, quantised as they are computed and not written in high precision where
/// `fuse` can; the two parts of dx are added inside the second product, which rounds their sum once
/// more than one product would (GPU: the first part to x's dtype, then the sum; CPU: the bits of
/// autograd's sum). Keeps for backward gate and up (M, F) in x's dtype, x and h transposed in FP8
/// (in high precision as the recipe asks), and the weights transposed or themselves. Gradients of
/// the weights are computed together: all three where any is asked for. Numerics, empty sizes,
/// autocast, second derivatives and errors: as float8_linear().
at::Tensor float8_swiglu_mlp(const at::Tensor& x, const at::Tensor& w_gate, const at::Tensor& w_up,
                             const at::Tensor& w_down, const Recipe& recipe,
                             const Float8SwigluMlpOptions& options = {});

}  // namespace octavo
