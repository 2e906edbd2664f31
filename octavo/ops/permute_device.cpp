#include "octavo/ops/permute_device.h"

#include <ATen/Functions.h>

namespace octavo::ops {
namespace {

at::Tensor token_of(const Moves& moves) {
  const std::int64_t copies = moves.row.size(1);
  return copies <= 1 ? moves.choice : moves.choice.div(copies, "floor");
}

// (M, k, D) fp32: each token's copies.
at::Tensor copies_of(const at::Tensor& x, const Moves& moves) {
  return x.index_select(0, moves.row.flatten())
      .to(at::kFloat)
      .view({moves.row.size(0), moves.row.size(1), x.size(1)});
}

}  // namespace

at::Tensor permuted(const at::Tensor& x, const Moves& moves) {
#if OCTAVO_WITH_CUDA
  if (x.is_cuda()) return permuted_cuda(x, moves);
#endif
  const at::Tensor rows = x.index_select(0, token_of(moves));
  if (!moves.weights.defined()) return rows;
  const at::Tensor weight = moves.weights.flatten().index_select(0, moves.choice).unsqueeze(1);
  return rows.to(at::kFloat).mul_(weight).to(x.scalar_type());
}

at::Tensor unpermuted(const at::Tensor& x, const Moves& moves) {
#if OCTAVO_WITH_CUDA
  if (x.is_cuda()) return unpermuted_cuda(x, moves);
#endif
  const std::int64_t copies = moves.row.size(1);
  if (copies == 1 && !moves.weights.defined()) return x.index_select(0, moves.row.flatten());
  at::Tensor out = at::zeros({moves.row.size(0), x.size(1)}, x.options().dtype(at::kFloat));
  for (std::int64_t j = 0; j < copies; ++j) {
    at::Tensor copy = x.index_select(0, moves.row.select(1, j)).to(at::kFloat);
    if (moves.weights.defined()) copy.mul_(moves.weights.narrow(1, j, 1));
    out.add_(copy);
  }
  return out.to(x.scalar_type());
}

at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, const Moves& moves) {
#if OCTAVO_WITH_CUDA
  if (x.is_cuda()) return weight_gradient_cuda(dy, x, moves);
#endif
  return copies_of(x, moves).mul_(dy.unsqueeze(1)).sum(-1);
}

}  // namespace octavo::ops
