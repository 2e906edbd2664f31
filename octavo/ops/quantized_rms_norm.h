#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "octavo/ops/float8_linear.h"

namespace octavo {

/// What quantized_rms_norm() gives.
struct QuantizedRmsNorm {
  at::Tensor h;                ///< x + residual, or x itself where there is none
  at::Tensor y;                ///< the normalised x, or what stands for it: sizes, dtype and graph
  QuantizedLayouts quantized;  ///< quantize_input(y, recipe, need_dw)
};

/// rms_norm() or add_rms_norm() for linears that take their input quantised
/// (Float8LinearOptions::input): y is quantised as it is computed. Unless the recipe keeps dw in
/// high precision and need_dw, nobody reads y itself, and the one returned has no memory of its
/// own: every element is NaN. Whoever gets it passes it on with `quantized`, and its gradient comes
/// back as dy. Bytes, scales and gradients are those of the operations one by one, on every device;
/// on a GPU a pass that finds the amaxes is saved, and in bf16 and where kernels take the sizes
/// (quantize/quantize_produced.h) y's way through memory.
///
/// For C++ modules: only while a graph is recorded, not under autocast, and no dispatcher operator.
/// No second derivatives. x: (..., D), fp32, bf16 or fp16; errors as rms_norm()'s and
/// float8_linear()'s.
QuantizedRmsNorm quantized_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                    const at::Tensor& w, double eps, const Recipe& recipe,
                                    bool need_dw);

}  // namespace octavo
