#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

#include "octavo/recipe/recipe.h"

/// The operators behind float8_grouped_linear, called through the dispatcher. Meaning of arguments
/// and outputs: ops/library.cpp.
namespace octavo::ops {

using GroupedForwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using GroupedBackwardResult = std::tuple<at::Tensor, at::Tensor>;

at::Tensor call_float8_grouped_linear(const at::Tensor& x, const at::Tensor& w,
                                      const at::Tensor& offs, std::string_view recipe,
                                      std::string_view keep_weight_transposed);

GroupedForwardResult call_float8_grouped_linear_forward(const at::Tensor& x, const at::Tensor& w,
                                                        const at::Tensor& offs,
                                                        std::string_view recipe, bool need_dx,
                                                        bool need_dw, bool keep_weight_transposed);

GroupedBackwardResult call_float8_grouped_linear_backward(
    const at::Tensor& dy, const std::optional<at::Tensor>& x,
    const std::optional<at::Tensor>& x_scale, const std::optional<at::Tensor>& w,
    const std::optional<at::Tensor>& w_scale, const at::Tensor& offs, std::string_view recipe,
    at::ScalarType dw_dtype);

/// The three grouped products' layouts on `device`, with its own flavour.
LinearSpec resolve_experts_for(std::string_view recipe, at::Device device);

/// Argument checks that compare no sizes, shared by real and Meta kernels.
void check_grouped_forward_arguments(const at::Tensor& x, const at::Tensor& w,
                                     const at::Tensor& offs);
void check_grouped_backward_arguments(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                      const std::optional<at::Tensor>& x_scale,
                                      const std::optional<at::Tensor>& w,
                                      const std::optional<at::Tensor>& w_scale,
                                      const at::Tensor& offs, const LinearSpec& spec);

}  // namespace octavo::ops
