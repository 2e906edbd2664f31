#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "octavo/device/native_products.h"
#include "octavo/quantize/scaled_tensor.h"

namespace octavo {

struct MatmulOptions {
  at::ScalarType out_dtype = at::kBFloat16;  ///< bf16, fp16 or fp32
  std::optional<at::Tensor> bias =
      std::nullopt;  ///< (N), fp32, bf16 or fp16, added in fp32 before the one rounding
  /// Let FP8 tensor cores keep partial sums in fewer bits (NVIDIA only; ignored elsewhere).
  bool fast_accumulation = false;
  /// out is added to this (M, N) tensor of dtype out_dtype, which is returned. For a trainer's
  /// gradient buffers: hooks, DDP and FSDP see nothing of it.
  std::optional<at::Tensor> accumulate_into = std::nullopt;
  Backend backend = Backend::kAuto;
};

/// out[M,N] = dequant(a)[M,K] . dequant(b)[N,K]^T (+ bias), accumulated in fp32, scales applied to
/// the fp32 result where they do not vary along K, one rounding to out_dtype.
///
/// a: (M, K), b: (N, K), both K-contiguous. Supported pairs of granularities: tensorwise x
/// tensorwise, rowwise x rowwise (a tensorwise scale counts as a repeated row scale), 1x128 x
/// 1x128, 1x128 x 128x128 (either order), mx1x32 x mx1x32.
/// M, N or K may be 0 (K = 0: zeros plus bias) and no multiple of anything.
/// Errors: sizes that do not match, e5m2 x e5m2, OCP x FNUZ, fp32 scales where MX asks for e8m0 and
/// the reverse, unsupported pairs, unsupported out_dtype, bias of wrong size or dtype.
at::Tensor scaled_mm(const ScaledTensor& a, const ScaledTensor& b, const MatmulOptions& options);

}  // namespace octavo
