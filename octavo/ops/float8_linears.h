#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "octavo/ops/float8_linear.h"

namespace octavo {

/// One of the linears of float8_linears(): w (N, K) with Float8LinearOptions; its `input` is not
/// read.
struct OneOfLinears {
  at::Tensor w;
  Float8LinearOptions options = {};
};

/// y_i = x . w_i^T for linears that read one x by one recipe (q, k and v), differentiable: x is
/// quantised once and kept once, and the parts of dx are added inside the products, from the last
/// linear's to the first's. Otherwise float8_linear() of each: the same bits but for dx on a GPU,
/// whose partial sums are rounded to x's dtype once each, where autograd's own sum rounds the
/// products too.
///
/// For C++ modules: only while a graph is recorded, not under autocast, and no dispatcher operator.
/// Errors: as float8_linear().
///
/// input: quantize_input(x, recipe, whether a w requires a gradient), or nullptr.
std::vector<at::Tensor> float8_linears(const at::Tensor& x,
                                       const std::vector<OneOfLinears>& linears,
                                       const Recipe& recipe,
                                       const QuantizedLayouts* input = nullptr);

}  // namespace octavo
