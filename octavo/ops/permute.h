#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

/// Tokens to experts and back. M tokens of D features go to k experts each; the M k copies are
/// sorted by expert:
///   choice (M k) int64: the copy, token * k + j, that sorted row r holds
///   row (M, k) int64:   the sorted row that holds copy (token, j); choice's inverse
/// Both ways are gathers: every output is written once and sums run in the order of j, so results
/// are the same bits in every run. fp32, bf16 or fp16; fp32 inside, one rounding.
namespace octavo {

/// y[row[m,j],:] = weights[m,j] * x[m,:], differentiable in x and weights: (M, D) -> (M k, D) in
/// x's dtype. weights as unpermute()'s; x's gradient is unpermute() of y's.
at::Tensor permute(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& row,
                   const std::optional<at::Tensor>& weights = std::nullopt);

/// y[m,:] = sum over j of weights[m,j] * x[row[m,j],:], differentiable in x and weights:
/// (M k, D) -> (M, D) in x's dtype. weights: (M, k) fp32, a router's; none: all 1. Backward keeps x
/// where weights need a gradient.
/// Errors of both: sizes that do not match, other dtypes, unlike devices. Indices are not checked
/// on GPUs. Second derivatives are an error when they are asked for.
at::Tensor unpermute(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& row,
                     const std::optional<at::Tensor>& weights = std::nullopt);

}  // namespace octavo
