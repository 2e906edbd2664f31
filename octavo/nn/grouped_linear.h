#pragma once

#include <ATen/core/Tensor.h>

namespace octavo::nn {

/// y[m,:] = x[m,:] . w[g]^T for the rows m of group g, in high precision, differentiable: what
/// float8_grouped_linear() is without FP8.
///
/// x: (M, K), w: (E, N, K) of x's dtype, fp32, bf16 or fp16; offs: (E) int32, END offset of each
/// group, the last of which is M: every row belongs to a group. y: (M, N) in x's dtype. An expert
/// without tokens has a weight gradient of exactly zero; M = 0 gives (0, N) and zeros.
/// On the CPU a product for each group; on GPUs LibTorch's grouped product, without a host
/// synchronisation (bf16; for other types LibTorch reads offs on the host).
/// Errors: sizes, dtypes or offs that do not fit (offs' values on the CPU only, or with
/// OCTAVO_CHECK_OFFSETS=1). Second derivatives are an error when they are asked for.
at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offs);

}  // namespace octavo::nn
