#pragma once

#include <ATen/core/Tensor.h>

/// What computes SwiGLU, by device. All tensors are (R, F) of one dtype with contiguous columns; h,
/// dgate and dup are written.
namespace octavo::ops {

void swiglu_rows(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& h);

void swiglu_backward_rows(const at::Tensor& dh, const at::Tensor& gate, const at::Tensor& up,
                          const at::Tensor& dgate, const at::Tensor& dup);

#if OCTAVO_WITH_CUDA
/// On the current stream of gate's device.
void swiglu_rows_cuda(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& h);
void swiglu_backward_rows_cuda(const at::Tensor& dh, const at::Tensor& gate, const at::Tensor& up,
                               const at::Tensor& dgate, const at::Tensor& dup);
#endif

}  // namespace octavo::ops
