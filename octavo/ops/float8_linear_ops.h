#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "octavo/ops/float8_linear.h"
#include "octavo/recipe/recipe.h"

/// The operators behind float8_linear, called through the dispatcher. Meaning of arguments and
/// outputs: ops/library.cpp.
namespace octavo::ops {

using ForwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using BackwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor call_float8_linear(const at::Tensor& x, const at::Tensor& w,
                              const std::optional<at::Tensor>& bias, std::string_view recipe,
                              std::string_view keep_weight_transposed,
                              const std::optional<at::Tensor>& w_rows,
                              const std::optional<at::Tensor>& w_rows_scale,
                              const std::optional<at::Tensor>& w_transposed,
                              const std::optional<at::Tensor>& w_transposed_scale);

ForwardResult call_float8_linear_forward(
    const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias,
    std::string_view recipe, bool need_dx, bool need_dw, bool keep_weight_transposed,
    const std::optional<at::Tensor>& w_rows, const std::optional<at::Tensor>& w_rows_scale,
    const std::optional<at::Tensor>& x_rows, const std::optional<at::Tensor>& x_rows_scale);

BackwardResult call_float8_linear_backward(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                           const std::optional<at::Tensor>& x_scale,
                                           const std::optional<at::Tensor>& w,
                                           const std::optional<at::Tensor>& w_scale,
                                           std::string_view recipe, at::ScalarType dw_dtype,
                                           std::optional<at::ScalarType> dbias_dtype);

using QuantizedResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
QuantizedResult call_quantize_input(const at::Tensor& x, std::string_view recipe, bool need_dw);
QuantizedResult call_quantize_weight(const at::Tensor& w, std::string_view recipe);

/// The kernel of float8_linear_backward. With `accumulate_into` (contiguous, of dw's sizes and
/// dtype) dw is added to it and is that tensor, and with `dx_into` dx to that: no operator, because
/// it writes to its arguments. w_amax: Float8LinearOptions::weight_amax, for a w to be quantised.
BackwardResult float8_linear_backward_kernel(
    const at::Tensor& dy, const std::optional<at::Tensor>& x,
    const std::optional<at::Tensor>& x_scale, const std::optional<at::Tensor>& w,
    const std::optional<at::Tensor>& w_scale, std::string_view recipe, at::ScalarType dw_dtype,
    std::optional<at::ScalarType> dbias_dtype, const std::optional<at::Tensor>& accumulate_into,
    const std::optional<at::Tensor>& dx_into, const at::Tensor& w_amax = {});

/// Whether w's transposed layout is kept from forward to backward.
bool keeps_weight_transposed(const at::Tensor& x, const at::Tensor& w, KeepWeightTransposed keep);

/// The kernel of float8_linear_forward. With x_rows (QuantizedLayouts of x) x is not quantised, and
/// need_dw is false where its transposed layout is there too. w_amax: as in backward.
ForwardResult float8_linear_forward_kernel(
    const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias,
    std::string_view recipe, bool need_dx, bool need_dw, bool keep_weight_transposed,
    const std::optional<at::Tensor>& w_rows, const std::optional<at::Tensor>& w_rows_scale,
    const std::optional<at::Tensor>& x_rows, const std::optional<at::Tensor>& x_rows_scale,
    const at::Tensor& w_amax = {});

/// float8_linear() recording its graph without the dispatcher, for Float8LinearOptions's input,
/// accumulate_into and weight_amax: no operator takes those.
at::Tensor float8_linear_recorded(const at::Tensor& x, const at::Tensor& w,
                                  const std::optional<at::Tensor>& bias, const std::string& recipe,
                                  const Float8LinearOptions& options);

/// The three products' layouts on `device`, with its own flavour.
LinearSpec resolve_for(std::string_view recipe, at::Device device);

/// The operator whose arguments are checked, and what it calls those that are a linear's x and w:
/// messages begin with it.
struct OperandNames {
  const char* op = "float8_linear";
  const char* x = "x";
  const char* w = "w";
};

/// Argument checks that compare no sizes, shared by real and Meta kernels.
void check_forward_arguments(const at::Tensor& x, const at::Tensor& w,
                             const std::optional<at::Tensor>& bias, const OperandNames& names = {});
void check_input_argument(const at::Tensor& x, const OperandNames& names = {});
void check_weight_argument(const at::Tensor& w, const OperandNames& names = {});
/// One layout of an operand that is quantised already: bytes and scale, both or none.
void check_quantized(const char* argument, const at::Tensor& w,
                     const std::optional<at::Tensor>& bytes,
                     const std::optional<at::Tensor>& scale);
void check_backward_arguments(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                              const std::optional<at::Tensor>& x_scale,
                              const std::optional<at::Tensor>& w,
                              const std::optional<at::Tensor>& w_scale, const LinearSpec& spec,
                              const OperandNames& names = {});

}  // namespace octavo::ops
