#pragma once

#include <ATen/core/Tensor.h>

/// What moves tokens, by device. Contiguous matrices; `weights` may be undefined.
namespace octavo::ops {

struct Moves {
  at::Tensor choice, row, weights;
};

/// (M, D) -> (M k, D), times weights.
at::Tensor permuted(const at::Tensor& x, const Moves& moves);
/// (M k, D) -> (M, D), weighted sums.
at::Tensor unpermuted(const at::Tensor& x, const Moves& moves);
/// dweights (M, k) from dy (M, D) and x (M k, D).
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, const Moves& moves);

#if OCTAVO_WITH_CUDA
at::Tensor permuted_cuda(const at::Tensor& x, const Moves& moves);
at::Tensor unpermuted_cuda(const at::Tensor& x, const Moves& moves);
at::Tensor weight_gradient_cuda(const at::Tensor& dy, const at::Tensor& x, const Moves& moves);
#endif

}  // namespace octavo::ops
