#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/gemm/scaled_grouped_mm.h"

/// What computes grouped products, by backend. Each expects what scaled_grouped_mm() and
/// scaled_grouped_mm_k() have checked, clamped offsets, and no empty sizes; each leaves rows past
/// the last offset and groups without columns zero.
namespace octavo {

/// A CPU loop over the groups through scaled_mm(): the definition the others are measured against.
at::Tensor grouped_mm_reference(const ScaledTensor& a, const ScaledTensor& b,
                                const at::Tensor& offs, const GroupedMatmulOptions& options);
at::Tensor grouped_mm_k_reference(const ScaledTensor& a, const ScaledTensor& b,
                                  const at::Tensor& offs_transposed,
                                  const GroupedMatmulOptions& options);

/// The same bytes and scales multiplied by at::_grouped_mm in bf16, which accumulates in fp32 and
/// rounds to bf16: on any device, without a host synchronisation on those whose at::_grouped_mm has
/// none (SM90 and later).
///
/// Row and tensor scales: bytes as bf16 (exact), scales applied to the rounded product in fp32. MX:
/// exponents folded into bf16 (exact, as scaled_mm_emulated()). 1x128 and 128x128: each dequantised
/// value as the sum of two bf16 numbers (17 bits, so 2^-17 of it is lost), the three products that
/// matter added up. fp32 output carries bf16's rounding.
at::Tensor grouped_mm_emulated(const ScaledTensor& a, const ScaledTensor& b, const at::Tensor& offs,
                               const GroupedMatmulOptions& options);
at::Tensor grouped_mm_k_emulated(const ScaledTensor& a, const ScaledTensor& b,
                                 const at::Tensor& offs_transposed,
                                 const GroupedMatmulOptions& options);

/// FP8 tensor cores, bf16 output, other types converted from it. `backend` is kOctavo (our kernels,
/// e4m3fn on SM90: rowwise scales and blocks of 128) or kAten (at::_scaled_grouped_mm: rowwise;
/// MX on SM100, which nobody has run yet).
/// Tensor scales of weights are repeated. N and K that are no multiple of 16 are padded with zeros
/// in copies of the operands.
at::Tensor grouped_mm_native(const ScaledTensor& a, const ScaledTensor& b, const at::Tensor& offs,
                             const GroupedMatmulOptions& options, Backend backend);
at::Tensor grouped_mm_k_native(const ScaledTensor& a, const ScaledTensor& b,
                               const at::Tensor& offs_transposed,
                               const GroupedMatmulOptions& options, Backend backend);

/// Padded operands on their way to a kernel: a (M, K) and b (E, N, K) with scales of M and (E, N),
/// or a (N, Mt) and b (K, Mt) with scales (E, N) and (E, K). `blocks`: scales of blocks of 128
/// instead, as scaled_grouped_mm() takes them, of the operands before they were padded.
struct NativeOperands {
  at::Tensor a, b, a_scale, b_scale, offs;
  bool fast_accumulation = false;
  bool blocks = false;
};

#if OCTAVO_WITH_CUDA
/// kernels/gpu/grouped_gemm.h on the current stream; bf16 results. `accumulate_into` (bf16,
/// (E, N, K) of the padded sizes, contiguous) or undefined: what the result is added to.
at::Tensor grouped_gemm_rows_cuda(const NativeOperands& in);
at::Tensor grouped_gemm_k_cuda(const NativeOperands& in, const at::Tensor& accumulate_into);
#endif

/// Zeros the rows of out (M, N) past the last offset, and the groups of out (E, N, K) without
/// columns. In place; on GPUs without a host synchronisation.
void zero_rows_past(const at::Tensor& out, const at::Tensor& offs);
void zero_empty_groups(const at::Tensor& out, const at::Tensor& offs_transposed);

}  // namespace octavo
