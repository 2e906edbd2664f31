#pragma once

#include <ATen/core/Tensor.h>

namespace octavo::nn {

/// Whether a backward pass that is being recorded may write w.grad() itself instead of handing the
/// gradient to autograd (for a trainer that owns w): a gradient is wanted, nobody watches it by
/// hooks, autocast is off, and what is there already is contiguous and of w's own dtype, fp32 or
/// bf16.
bool owns_gradient(const at::Tensor& w);

}  // namespace octavo::nn
