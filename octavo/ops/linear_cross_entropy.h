#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace octavo {

/// The mean cross-entropy of x . w^T against `targets`, in nats, without fp32 logits:
///
///   logits = x . w^T;  loss = mean over m of log(sum_v exp(logits[m,v])) - logits[m, targets[m]]
///
/// x: (..., K), w: (V, K) of x's dtype; targets: (...) int64. loss: scalar, fp32. Differentiable in
/// x and w.
/// On a GPU (fp32, bf16, fp16) tokens are taken in chunks whose logits, in x's dtype, fill at most
/// `chunk_bytes`; each chunk's gradient replaces its logits in place and is multiplied at once into
/// dx and dw, which is what backward keeps. dw is added up in fp32 within a chunk and rounded to
/// w's dtype once a chunk. On the CPU: LibTorch's linear and cross_entropy on fp32 logits.
/// A target outside [0, V) is an error on the CPU and a NaN loss on a GPU, which cannot throw; on
/// the CPU -100 is none and does not count.
/// No tokens: NaN, as LibTorch's mean. Deterministic. Backward runs once.
/// Errors: sizes or dtypes that do not match.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& w, const at::Tensor& targets,
                                std::int64_t chunk_bytes = std::int64_t{1} << 30);

/// The mean cross-entropy of logits (M, V) fp32 and targets (M) int64 by LibTorch: a target of -100
/// does not count, another outside [0, V) is an error on the CPU, and ends the process on a GPU.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

/// The same on a GPU for a trainer that owns w: dw is written to w.grad(), or added to what is
/// there, in the products of the forward pass, and autograd gets none. `gradient` is what
/// backward() will hand to the loss (1 / micro-batches): all gradients are made with it at once,
/// and backward does not look at what it is handed. Errors: those above; not on a GPU, no graph
/// recorded, a gradient of w of another dtype.
at::Tensor linear_cross_entropy_in_place(const at::Tensor& x, const at::Tensor& w,
                                         const at::Tensor& targets, double gradient,
                                         std::int64_t chunk_bytes = std::int64_t{1} << 30);

}  // namespace octavo
