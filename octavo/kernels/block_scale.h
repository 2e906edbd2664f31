#pragma once

#include "octavo/kernels/matrix.h"

namespace octavo::kernels {

/// inv_scale of a block from its amax, and its scale (or e8m0 code) written to element `at` of the
/// target's scales.
inline float write_block_scale(const LayoutTarget& target, float amax, std::int64_t at) {
  if (target.blocks == Blocks::kMx1x32 || target.blocks == Blocks::kMx32x1) {
    const std::uint8_t code = mx_code_of(amax, target.format, target.mx_rounding);
    static_cast<std::uint8_t*>(target.scale)[at] = code;
    return inv_scale_e8m0(code);
  }
  const float inv_scale = inv_scale_of(amax, target.format, target.scale_rounding);
  static_cast<float*>(target.scale)[at] = scale_of(inv_scale);
  return inv_scale;
}

/// Whether a block's values are finite once multiplied: its amax was neither NaN (inv_scale NaN)
/// nor Inf (inv_scale 0).
inline bool is_finite_block(float inv_scale) { return inv_scale > 0.0f; }

}  // namespace octavo::kernels
