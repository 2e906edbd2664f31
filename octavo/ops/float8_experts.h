#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "octavo/ops/float8_linear.h"
#include "octavo/recipe/recipe.h"

namespace octavo {

struct Float8ExpertsOptions {
  /// kAuto: kept when 2 M >= 2 F, as Float8SwigluMlpOptions, all experts' tokens counted.
  KeepWeightTransposed keep_weight_transposed = KeepWeightTransposed::kAuto;
  bool fuse = true;  ///< Float8SwigluMlpOptions::fuse
  /// Of gate_up and down, quantised already (experts' layouts), and the gradients to add to: only
  /// while a graph is recorded; not under autocast.
  std::array<const QuantizedLayouts*, 2> weights = {};
  std::array<at::Tensor, 2> accumulate_into = {};
};

/// The SwiGLU networks of E experts as one operation, differentiable, with FP8 grouped products:
///
///   gate_up[m,:] = x[m,:] . w_gate_up[g]^T                       rows m of group g
///   y[m,:]       = (silu(gate) * up)[m,:] . w_down[g]^T          the halves of gate_up
///
/// x: (M, D) sorted by expert; w_gate_up: (E, 2F, D), gate's rows first; w_down: (E, D', F); fp32,
/// bf16 or fp16, the weights of one dtype; offs: (E) int32, END offset of each group. y: (M, D').
/// The same bits as two float8_grouped_linear() and swiglu(), but h and the gradient of gate_up go
/// to their products quantised as they are computed and not written in high precision where `fuse`
/// can. Gradients of both weights are computed together. Everything else, and errors: as
/// float8_grouped_linear().
at::Tensor float8_experts(const at::Tensor& x, const at::Tensor& w_gate_up,
                          const at::Tensor& w_down, const at::Tensor& offs, const Recipe& recipe,
                          const Float8ExpertsOptions& options = {});

}  // namespace octavo
