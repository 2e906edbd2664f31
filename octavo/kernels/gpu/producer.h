#pragma once

#include "octavo/kernels/gpu/types.h"

namespace octavo::gpu {

/// Rows with contiguous columns on the device, read eight elements at a time: 16-byte aligned, the
/// stride (in elements) a multiple of 8.
struct ConstRows {
  const void* data = nullptr;
  std::int64_t row_stride = 0;
};

/// What a quantiser's matrix is where nobody has written it: its elements follow from others.
enum class Production : std::uint8_t {
  kNone,             ///< Matrix::data holds it
  kSwiglu,           ///< h = silu(gate) * up
  kSwigluGradients,  ///< [dgate | dup], of dh, gate and up
  kRmsNorm,          ///< y = h * rstd * w
};

/// A matrix x (M, K) that a quantiser computes as it goes, in registers, as often as it reads it.
/// Each value is rounded to bf16 before anything else is done with it, and equals bit for bit what
/// swiglu(), swiglu_backward() and rms_norm() write.
///
///   kSwiglu           gate, up (M, F)          K = F
///   kSwigluGradients  dh, gate, up (M, F)      K columns of (M, 2F) from first_column on: all of
///                                              them, or one of the halves (0 or F, K = F)
///   kRmsNorm          h (M, D), rstd (M), w    K = D
///
/// Everything in memory is bf16, but rstd, which is fp32, and w, which has a type of its own. K, F
/// and D are multiples of 8; w is 16-byte aligned. The Matrix beside a producer gives rows, columns
/// and dtype bf16, and has no data.
struct Producer {
  Production what = Production::kNone;
  ConstRows gate = {}, up = {}, dh = {};
  std::int64_t features = 0;  ///< F
  std::int64_t first_column = 0;
  ConstRows h = {};
  const float* rstd = nullptr;
  const void* w = nullptr;
  DType w_dtype = DType::kBF16;

  explicit operator bool() const { return what != Production::kNone; }
};

/// Whether kernels take `from` for x (M, K) and `format` on the current device: the conditions
/// above, the hardware converts `format` (e5m2 for gradients only), and M is a multiple of 16 (by
/// offsets: any M, but no kRmsNorm).
bool fits_producer(const Producer& from, const Matrix& x, Format format, bool by_offsets);

}  // namespace octavo::gpu
