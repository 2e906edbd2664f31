#pragma once

#include "octavo/kernels/gpu/amax.h"

namespace octavo::gpu {

/// A matrix with contiguous columns on the device, read or written. Strides count elements.
struct RowsOf {
  void* data = nullptr;
  std::int64_t row_stride = 0;
};

/// SwiGLU of (rows, columns) matrices, fp32 inside, one rounding; for 16-bit types with the
/// hardware's approximate 2^x and 1/x (swiglu_math.h):
///
///   h = gate * s * up               with s = 1 / (1 + exp(-gate))
///
/// and its gradients:
///
///   dgate = dh * up * s * (1 + gate * (1 - s)),   dup = dh * gate * s
///
/// gate and up may be the halves of one matrix, and so may dgate and dup. Amaxes of results cost no
/// pass of their own where all start 16-byte aligned and rows are multiples of 8.
struct SwigluArgs {
  std::int64_t rows = 0, columns = 0;
  DType dtype = DType::kBF16;  ///< of all
  RowsOf gate = {}, up = {};
  RowsOf h = {};                         ///< written by swiglu(), ignored by the other
  RowsOf dh = {}, dgate = {}, dup = {};  ///< dh is read, the others written by swiglu_backward()
  WrittenAmax h_amax = {}, dgate_amax = {}, dup_amax = {};
};

void swiglu(const SwigluArgs& args, Stream stream);
void swiglu_backward(const SwigluArgs& args, Stream stream);

}  // namespace octavo::gpu
