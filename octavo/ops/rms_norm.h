#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace octavo {

/// y = x / sqrt(mean(x^2 over the last dimension) + eps) * w, differentiable in x and w.
///
/// x: (..., D) any floating dtype; w: (D). y: (..., D) in x's dtype. Computed in fp32 (in fp64 for
/// fp64 input) and rounded once at the end. Backward keeps x, w and one fp32 number per row.
/// An empty x gives an empty y and zero dw. A NaN or Inf makes its own row NaN and no other.
/// CPU and GPU agree to rounding (sums in another order). Deterministic.
/// Errors: a last dimension that is not w's size; an eps that is negative or not finite.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& w, double eps);

/// (h, y): h = x + residual, rounded to x's dtype, and y = rms_norm(h, w, eps), in one pass on a
/// GPU; differentiable in all three. x and residual: alike in sizes and dtype. The gradient of h
/// and that through y are added in the same pass.
std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& w, double eps);

}  // namespace octavo
