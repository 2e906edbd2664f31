#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/quantize/quantize_produced.h"

/// What computes SwiGLU, by device. All tensors are (R, F) of one dtype with contiguous columns; h,
/// dgate and dup are written, and their amaxes where not null (a GPU's only).
namespace octavo::ops {

void swiglu_rows(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& h,
                 const Amaxes* h_amaxes = nullptr);

void swiglu_backward_rows(const at::Tensor& dh, const at::Tensor& gate, const at::Tensor& up,
                          const at::Tensor& dgate, const at::Tensor& dup,
                          const Amaxes* dgate_amaxes = nullptr, const Amaxes* dup_amaxes = nullptr);

#if OCTAVO_WITH_CUDA
/// On the current stream of gate's device.
void swiglu_rows_cuda(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& h,
                      const Amaxes* h_amaxes);
void swiglu_backward_rows_cuda(const at::Tensor& dh, const at::Tensor& gate, const at::Tensor& up,
                               const at::Tensor& dgate, const at::Tensor& dup,
                               const Amaxes* dgate_amaxes, const Amaxes* dup_amaxes);
#endif

}  // namespace octavo::ops
