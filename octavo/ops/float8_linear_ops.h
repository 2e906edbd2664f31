#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

#include "octavo/recipe/recipe.h"

/// The operators behind float8_linear, called through the dispatcher. Meaning of arguments and
/// outputs: ops/library.cpp.
namespace octavo::ops {

using ForwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using BackwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor call_float8_linear(const at::Tensor& x, const at::Tensor& w,
                              const std::optional<at::Tensor>& bias, std::string_view recipe,
                              std::string_view keep_weight_transposed);

ForwardResult call_float8_linear_forward(const at::Tensor& x, const at::Tensor& w,
                                         const std::optional<at::Tensor>& bias,
                                         std::string_view recipe, bool need_dx, bool need_dw,
                                         bool keep_weight_transposed);

BackwardResult call_float8_linear_backward(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                           const std::optional<at::Tensor>& x_scale,
                                           const std::optional<at::Tensor>& w,
                                           const std::optional<at::Tensor>& w_scale,
                                           std::string_view recipe, at::ScalarType dw_dtype,
                                           std::optional<at::ScalarType> dbias_dtype);

/// The three products' layouts on `device`, with its own flavour.
LinearSpec resolve_for(std::string_view recipe, at::Device device);

/// Argument checks that compare no sizes, shared by real and Meta kernels.
void check_forward_arguments(const at::Tensor& x, const at::Tensor& w,
                             const std::optional<at::Tensor>& bias);
void check_backward_arguments(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                              const std::optional<at::Tensor>& x_scale,
                              const std::optional<at::Tensor>& w,
                              const std::optional<at::Tensor>& w_scale, const LinearSpec& spec);

}  // namespace octavo::ops
