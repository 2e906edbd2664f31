#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <tuple>

#include "octavo/quantize/quantize.h"

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

/// Of x, the residual and w, undefined where nobody needs it, from the gradients of (h, y), or of y
/// where there is no residual: backward of a Function of (x, residual, w, ...) that saved h, w and
/// rstd.
struct RmsNormGradients {
  at::Tensor x, residual, w;
};
RmsNormGradients rms_norm_gradients(const torch::autograd::AutogradContext& context,
                                    const torch::autograd::variable_list& gradients);

/// rms_norm_forward whose y is an operand: quantised by `spec`, with the bits of quantize_operand()
/// of y.
struct RmsNormOperand {
  at::Tensor h, rstd;  ///< as rms_norm_forward's
  at::Tensor y;        ///< undefined unless it was to be kept
  QuantizedOperand operand;
};
RmsNormOperand rms_norm_operand(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                const at::Tensor& w, double eps, const OperandSpec& spec,
                                bool keep_y);

#if OCTAVO_WITH_CUDA
/// On a GPU y is not written where it is not kept and kernels compute it again as they quantise it
/// (quantize/quantize_produced.h); its amaxes cost no pass either way.
RmsNormOperand rms_norm_operand_cuda(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                                     const at::Tensor& w, double eps, const OperandSpec& spec,
                                     bool keep_y);
#endif

void check_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                    const at::Tensor& w, double eps);

}  // namespace octavo::ops
