#pragma once

#include <ATen/core/Tensor.h>

namespace octavo::ops {

/// dbias[n] = sum over m of dy[m,n], added up in fp32 and rounded once to `dtype`.
///
/// dy: (M, N) fp32, bf16 or fp16, any strides, not copied (at::sum would convert a bf16 dy first).
/// M = 0: zeros. Deterministic for any number of threads.
at::Tensor bias_gradient(const at::Tensor& dy, at::ScalarType dtype);

}  // namespace octavo::ops
