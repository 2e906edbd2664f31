#pragma once

#include <ATen/core/Tensor.h>

namespace octavo {

/// Where high_precision_mm() writes.
struct MmOut {
  at::Tensor into = {};  ///< (M, N) contiguous, of a's dtype; undefined: a new tensor
  bool adds = false;     ///< to what is in `into`, inside the product: one rounding
};

/// out[m,n] = sum over k of a[m,k] * b[n,k]: the products a recipe leaves in high precision.
///
/// a (M, K), b (N, K): one dtype, any strides (a transposed view costs nothing). K = 0: zeros.
/// Large bf16 and fp16 products on an NVIDIA GPU run by the algorithm that cublaslt_tuning() finds
/// for them, as scaled_mm()'s do: of the three of a Llama head (8192 tokens, 128256 words, 4096
/// features) cuBLASLt's first proposal is not the fastest in two, by 5% and 8% on an H200. All
/// others are LibTorch's, and what is first met while a CUDA graph is captured. NaN and Inf as in
/// at::mm. Errors: LibTorch's, for sizes, dtypes and devices that do not go together.
at::Tensor high_precision_mm(const at::Tensor& a, const at::Tensor& b, const MmOut& out = {});

#if OCTAVO_WITH_CUDA
/// The same by cuBLASLt; false, with nothing done, where it is LibTorch's to do.
bool high_precision_mm_cublaslt(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                                bool adds);
#endif

}  // namespace octavo
