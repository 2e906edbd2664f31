#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "octavo/ops/float8_grouped_linear.h"
#include "octavo/ops/float8_linear_ops.h"
#include "octavo/recipe/recipe.h"

/// The operators behind float8_grouped_linear, called through the dispatcher. Meaning of arguments
/// and outputs: ops/library.cpp.
namespace octavo::ops {

using GroupedForwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using GroupedBackwardResult = std::tuple<at::Tensor, at::Tensor>;

at::Tensor call_float8_grouped_linear(const at::Tensor& x, const at::Tensor& w,
                                      const at::Tensor& offs, std::string_view recipe,
                                      std::string_view keep_weight_transposed,
                                      const std::optional<at::Tensor>& w_rows,
                                      const std::optional<at::Tensor>& w_rows_scale,
                                      const std::optional<at::Tensor>& w_transposed,
                                      const std::optional<at::Tensor>& w_transposed_scale);

GroupedForwardResult call_float8_grouped_linear_forward(
    const at::Tensor& x, const at::Tensor& w, const at::Tensor& offs, std::string_view recipe,
    bool need_dx, bool need_dw, bool keep_weight_transposed,
    const std::optional<at::Tensor>& w_rows, const std::optional<at::Tensor>& w_rows_scale);

GroupedBackwardResult call_float8_grouped_linear_backward(
    const at::Tensor& dy, const std::optional<at::Tensor>& x,
    const std::optional<at::Tensor>& x_scale, const std::optional<at::Tensor>& w,
    const std::optional<at::Tensor>& w_scale, const at::Tensor& offs, std::string_view recipe,
    at::ScalarType dw_dtype);

/// The kernel of float8_grouped_linear_backward. With `accumulate_into` dw is added to it and is
/// that tensor: no operator, because it writes to its argument.
GroupedBackwardResult float8_grouped_linear_backward_kernel(
    const at::Tensor& dy, const std::optional<at::Tensor>& x,
    const std::optional<at::Tensor>& x_scale, const std::optional<at::Tensor>& w,
    const std::optional<at::Tensor>& w_scale, const at::Tensor& offs, std::string_view recipe,
    at::ScalarType dw_dtype, const std::optional<at::Tensor>& accumulate_into);

/// float8_grouped_linear() recording its graph without the dispatcher, for accumulate_into.
at::Tensor float8_grouped_linear_recorded(const at::Tensor& x, const at::Tensor& w,
                                          const at::Tensor& offs, const std::string& recipe,
                                          const GroupedLinearOptions& options);

/// quantize_weight() of experts' weights (E, N, K), and its shapes on symbolic sizes.
QuantizedResult quantize_experts_weight(const at::Tensor& w, std::string_view recipe);
QuantizedResult quantize_experts_weight_meta(const at::Tensor& w, std::string_view recipe);

/// The three grouped products' layouts on `device`, with its own flavour.
LinearSpec resolve_experts_for(std::string_view recipe, at::Device device);

/// Argument checks that compare no sizes, shared by real and Meta kernels; OperandNames as for
/// float8_linear's.
inline constexpr OperandNames kGroupedOperands{.op = "float8_grouped_linear"};
void check_grouped_weight(const at::Tensor& w, const OperandNames& names = kGroupedOperands);
/// One layout of w that is quantised already: bytes (three dimensions) and flat scale, both or
/// none.
void check_quantized_experts(const char* argument, const at::Tensor& w,
                             const std::optional<at::Tensor>& bytes,
                             const std::optional<at::Tensor>& scale);
void check_grouped_forward_arguments(const at::Tensor& x, const at::Tensor& w,
                                     const at::Tensor& offs,
                                     const OperandNames& names = kGroupedOperands);
void check_grouped_backward_arguments(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                      const std::optional<at::Tensor>& x_scale,
                                      const std::optional<at::Tensor>& w,
                                      const std::optional<at::Tensor>& w_scale,
                                      const at::Tensor& offs, const LinearSpec& spec,
                                      const OperandNames& names = kGroupedOperands);

}  // namespace octavo::ops
