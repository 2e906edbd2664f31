#pragma once

#include <ATen/core/Tensor.h>

namespace octavo::ops {

/// A matrix x (R, C) of one byte an element, any strides, transposed: (C, R), contiguous, memory of
/// its own. One read and one write on a GPU, where a copy of x.t() takes several times as long.
/// Empty x: empty. Errors: no matrix, larger elements.
at::Tensor transpose_bytes(const at::Tensor& x);

#if OCTAVO_WITH_CUDA
at::Tensor transpose_bytes_cuda(const at::Tensor& x);
#endif

}  // namespace octavo::ops
