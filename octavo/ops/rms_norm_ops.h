#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

/// The operators behind rms_norm() and add_rms_norm(). Meaning of arguments and outputs:
/// ops/library.cpp.
namespace octavo::ops {

using RmsNormResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // h, y, rstd

/// By LibTorch's own operations: any device and floating type.
RmsNormResult rms_norm_composite(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                 const at::Tensor& w, double eps);
std::tuple<at::Tensor, at::Tensor> rms_norm_backward_composite(
    const at::Tensor& dy, const std::optional<at::Tensor>& dh, const at::Tensor& h,
    const at::Tensor& w, const at::Tensor& rstd, bool need_dx, bool need_dw);

void check_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                    const at::Tensor& w);

}  // namespace octavo::ops
