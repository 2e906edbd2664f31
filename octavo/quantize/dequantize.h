#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/quantize/scaled_tensor.h"

namespace octavo {

/// The values of the bytes alone, without the scale: fp32 (R, C) of logical_sizes, exact. What a
/// product whose scales do not vary along the contraction multiplies. Counts one decode. CPU only.
at::Tensor decode_unscaled(const ScaledTensor& matrix);

}  // namespace octavo
