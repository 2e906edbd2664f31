#pragma once

#include "octavo/kernels/gpu/amax.h"

namespace octavo::gpu {

/// y = h * rstd * w with rstd = 1 / sqrt(mean(h^2) + eps) over the columns, in fp32, rounded once;
/// h = x + residual rounded to x's type where there is a residual, and x itself otherwise. One
/// read of each, one write. Who computes y again from h, rstd and w (producer.h) gets the same bits
/// and needs no y; its amaxes cost no pass.
struct RmsNormArgs {
  const void* x = nullptr;         ///< (M, D), contiguous, 16-byte aligned
  const void* residual = nullptr;  ///< like x; null: none
  const void* w = nullptr;         ///< (D), 16-byte aligned
  DType dtype = DType::kBF16;      ///< of x, residual, h and y
  DType w_dtype = DType::kBF16;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  ///< fits_rms_norm(columns)
  float eps = 0;
  void* h = nullptr;      ///< (M, D), written where there is a residual
  void* y = nullptr;      ///< (M, D); null: not written
  float* rstd = nullptr;  ///< (M)
  WrittenAmax y_amax = {};
  void* partial =
      nullptr;  ///< rms_norm_partials() elements of dtype, any content, for y_amax.column
};

/// Whether the kernels take rows of so many columns: a multiple of 8, at most 16384 (a row lies in
/// a block's registers).
bool fits_rms_norm(std::int64_t columns);

/// Elements of scratch memory for column amaxes.
std::int64_t rms_norm_partials(std::int64_t rows, std::int64_t columns);

void rms_norm(const RmsNormArgs& args, Stream stream);

/// The gradients, with g = dy * w and c = rstd^3 / D * sum over columns of g * h:
///
///   dx[m,:] = g * rstd - h * c (+ dh)          rounded once
///   dw[d]   = sum over rows of dy * h * rstd   in fp32, rounded once
///
/// dh, which may be null, is the gradient that reaches h past the normalisation. dw is added up by
/// kRmsNormBlocks partial sums in `partial` and then once over these: the same bits on every GPU.
struct RmsNormBackwardArgs {
  const void* dy = nullptr;  ///< (M, D)
  const void* dh = nullptr;  ///< (M, D) or null
  const void* h = nullptr;   ///< (M, D)
  const void* w = nullptr;   ///< (D), 16-byte aligned
  const float* rstd = nullptr;
  DType dtype = DType::kBF16;    ///< of dy, dh, h and dx
  DType w_dtype = DType::kBF16;  ///< of w and dw
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  void* dx = nullptr;        ///< (M, D)
  float* partial = nullptr;  ///< (kRmsNormBlocks, D)
  void* dw = nullptr;        ///< (D)
};

/// All at work at once, and the same rows to each: two blocks a multiprocessor of large GPUs.
inline constexpr std::int64_t kRmsNormBlocks = 256;

void rms_norm_backward(const RmsNormBackwardArgs& args, Stream stream);

}  // namespace octavo::gpu
