#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "octavo/device/native_products.h"
#include "octavo/quantize/quantize_grouped.h"
#include "octavo/quantize/scaled_tensor.h"

namespace octavo {

struct GroupedMatmulOptions {
  at::ScalarType out_dtype = at::kBFloat16;  ///< bf16, fp16 or fp32
  /// Let FP8 tensor cores keep partial sums in fewer bits (NVIDIA only; ignored elsewhere).
  bool fast_accumulation = false;
  /// scaled_grouped_mm_k() only: the result is added to this contiguous (E, N, K) of dtype
  /// out_dtype, which is returned; the bits are those of adding it afterwards. For a trainer's
  /// gradient buffers: hooks, DDP and FSDP see nothing of it.
  std::optional<at::Tensor> accumulate_into = std::nullopt;
  /// kAuto: the device's own (native_grouped_product()). kReference: CPU only. kEmulated: anywhere.
  Backend backend = Backend::kAuto;
};

/// out[m,:] = dequant(a)[m,:] . dequant(b)[g]^T for the rows m of group g, zero for rows past the
/// last offset: (M, K) x (E, N, K)^T -> (M, N).
///
/// a: activations by rows (GroupedOperand::rows, or quantize_operand()'s rows). b: weights of
/// quantize_expert_weights(): w by rows for the forward product, w transposed for dx. offs: (E)
/// int32, ends of the groups among a's rows (quantize_grouped.h says what happens with bad ones).
/// Supported pairs: rowwise x rowwise or tensorwise, 1x128 x 128x128, mx1x32 x mx1x32. Sums, scales
/// and rounding as scaled_mm(); the reference equals scaled_mm() of every group bit for bit.
/// Empty sizes give empty or zero results.
/// Errors: sizes that do not match, offs, e5m2 x e5m2, OCP x FNUZ, unsupported pairs or out_dtype,
/// a backend that cannot.
at::Tensor scaled_grouped_mm(const ScaledTensor& a, const ScaledTensor& b, const at::Tensor& offs,
                             const GroupedMatmulOptions& options);

/// The weight gradients: out[g] = dequant(a)[:, g] . dequant(b)[:, g]^T over the columns of group
/// g, (N, Mt) x (K, Mt)^T -> (E, N, K). A group without columns gives exactly zero.
///
/// a, b: the transposed layouts of dy and x, quantised by groups with the same offsets
/// (GroupedOperand::transposed); offs_transposed: theirs, aligned ends. Supported pairs: rowwise x
/// rowwise (scales (E, N) and (E, K)), 1x128 x 1x128, mx1x32 x mx1x32. The reference equals
/// scaled_mm() of every group's columns bit for bit. Errors as scaled_grouped_mm().
at::Tensor scaled_grouped_mm_k(const ScaledTensor& a, const ScaledTensor& b,
                               const at::Tensor& offs_transposed,
                               const GroupedMatmulOptions& options);

/// The weight gradients in high precision: out[g] = dy[rows of g]^T . x[rows of g],
/// (M, N), (M, K) -> (E, N, K) in `out_dtype`; zero for an empty group. Rows past the last offset
/// do not count. fp32, bf16 or fp16 (GPUs multiply in bf16: fp32 operands too, as recipes that keep
/// dw in high precision ask for on GPUs).
at::Tensor grouped_mm_k(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& offs,
                        at::ScalarType out_dtype);

}  // namespace octavo
