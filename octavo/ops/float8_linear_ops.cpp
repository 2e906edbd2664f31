#include "octavo/ops/float8_linear_ops.h"
#include "octavo/ops/find_operator.h"

#include <c10/util/Exception.h>

namespace octavo::ops {
namespace {

bool is_high_precision(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

void check_dtype(const char* op, const char* argument, const at::Tensor& tensor) {
  TORCH_CHECK(is_high_precision(tensor.scalar_type()), op, ": ", argument,
              " must be float32, bfloat16 or float16, got ", tensor.scalar_type(),
              "; convert it with ", argument, ".to(torch.float32)");
}

// An operand kept for backward: FP8 bytes with their scale, or high precision without one.
void check_saved(const char* op, const char* argument, const std::optional<at::Tensor>& tensor,
                 const std::optional<at::Tensor>& scale) {
  if (!tensor) {
    TORCH_CHECK(!scale, op, "_backward: ", argument, "_scale is given without ", argument,
                "; give both or none");
    return;
  }
  if (!scale) return check_dtype(op, argument, *tensor);
  TORCH_CHECK(tensor->scalar_type() == at::kByte && tensor->dim() == 2, op, "_backward: ", argument,
              " with a scale must be a matrix of bytes, got ", tensor->scalar_type(), " with ",
              tensor->dim(), " dimensions; pass both as ", op, "_forward gave them");
}

}  // namespace

at::Tensor call_float8_linear(const at::Tensor& x, const at::Tensor& w,
                              const std::optional<at::Tensor>& bias, std::string_view recipe,
                              std::string_view keep_weight_transposed,
                              const std::optional<at::Tensor>& w_rows,
                              const std::optional<at::Tensor>& w_rows_scale,
                              const std::optional<at::Tensor>& w_transposed,
                              const std::optional<at::Tensor>& w_transposed_scale) {
  static const auto op = find_operator<decltype(call_float8_linear)>("octavo::float8_linear");
  return op.call(x, w, bias, recipe, keep_weight_transposed, w_rows, w_rows_scale, w_transposed,
                 w_transposed_scale);
}

ForwardResult call_float8_linear_forward(
    const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias,
    std::string_view recipe, bool need_dx, bool need_dw, bool keep_weight_transposed,
    const std::optional<at::Tensor>& w_rows, const std::optional<at::Tensor>& w_rows_scale,
    const std::optional<at::Tensor>& x_rows, const std::optional<at::Tensor>& x_rows_scale) {
  static const auto op =
      find_operator<decltype(call_float8_linear_forward)>("octavo::float8_linear_forward");
  return op.call(x, w, bias, recipe, need_dx, need_dw, keep_weight_transposed, w_rows, w_rows_scale,
                 x_rows, x_rows_scale);
}

QuantizedResult call_quantize_input(const at::Tensor& x, std::string_view recipe, bool need_dw) {
  static const auto op = find_operator<decltype(call_quantize_input)>("octavo::quantize_input");
  return op.call(x, recipe, need_dw);
}

QuantizedResult call_quantize_weight(const at::Tensor& w, std::string_view recipe) {
  static const auto op = find_operator<decltype(call_quantize_weight)>("octavo::quantize_weight");
  return op.call(w, recipe);
}

BackwardResult call_float8_linear_backward(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                           const std::optional<at::Tensor>& x_scale,
                                           const std::optional<at::Tensor>& w,
                                           const std::optional<at::Tensor>& w_scale,
                                           std::string_view recipe, at::ScalarType dw_dtype,
                                           std::optional<at::ScalarType> dbias_dtype) {
  static const auto op =
      find_operator<decltype(call_float8_linear_backward)>("octavo::float8_linear_backward");
  return op.call(dy, x, x_scale, w, w_scale, recipe, dw_dtype, dbias_dtype);
}

void check_input_argument(const at::Tensor& x, const OperandNames& names) {
  TORCH_CHECK(x.dim() >= 1, names.op, ": ", names.x, " must be (..., K), got a scalar; give it a ",
              "dimension of features");
  check_dtype(names.op, names.x, x);
}

void check_weight_argument(const at::Tensor& w, const OperandNames& names) {
  TORCH_CHECK(w.dim() == 2, names.op, ": ", names.w, " must be (N, K), got ", w.dim(),
              " dimensions; pass one weight, (out_features, in_features)");
  check_dtype(names.op, names.w, w);
}

void check_quantized(const char* argument, const at::Tensor& w,
                     const std::optional<at::Tensor>& bytes,
                     const std::optional<at::Tensor>& scale) {
  TORCH_CHECK(bytes.has_value() == scale.has_value(), "float8_linear: expected ", argument, " and ",
              argument, "_scale together, got only ", bytes ? argument : "the scale",
              "; pass both of what was quantised");
  if (!bytes) return;
  TORCH_CHECK(bytes->scalar_type() == at::kByte && bytes->dim() == 2 && scale->dim() == 1,
              "float8_linear: ", argument, " must be a matrix of bytes with flat scales, got ",
              bytes->scalar_type(), " with ", bytes->dim(), " dimensions and scales with ",
              scale->dim(), "; pass what quantize_weight gave");
  TORCH_CHECK(bytes->device() == w.device() && scale->device() == w.device(),
              "float8_linear: ", argument, " and its scale must be on the operand's device, ",
              w.device(), ", got ", bytes->device(), " and ", scale->device(), "; move them there");
}

void check_forward_arguments(const at::Tensor& x, const at::Tensor& w,
                             const std::optional<at::Tensor>& bias, const OperandNames& names) {
  check_input_argument(x, names);
  check_weight_argument(w, names);
  TORCH_CHECK(w.device() == x.device(), names.op, ": ", names.x, " and ", names.w,
              " must be on one device, got ", x.device(), " and ", w.device(),
              "; move one of them");
  if (!bias) return;
  TORCH_CHECK(bias->dim() == 1, names.op, ": bias must be (N), got ", bias->dim(),
              " dimensions; flatten it");
  check_dtype(names.op, "bias", *bias);
  TORCH_CHECK(bias->device() == x.device(), names.op, ": ", names.x, " and bias must be on one ",
              "device, got ", x.device(), " and ", bias->device(), "; move one of them");
}

void check_backward_arguments(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                              const std::optional<at::Tensor>& x_scale,
                              const std::optional<at::Tensor>& w,
                              const std::optional<at::Tensor>& w_scale, const LinearSpec& spec,
                              const OperandNames& names) {
  TORCH_CHECK(dy.dim() >= 1, names.op, "_backward: dy must be (..., N), got a scalar; give it a ",
              "dimension of features");
  check_dtype(names.op, "dy", dy);
  check_saved(names.op, names.x, x, x_scale);
  check_saved(names.op, names.w, w, w_scale);
  TORCH_CHECK(!x || x_scale.has_value() != spec.dw.high_precision(), names.op,
              "_backward: this recipe needs ", names.x,
              spec.dw.high_precision() ? " itself, without a scale" : " as bytes with a scale",
              "; pass what ", names.op, "_forward saves for it");
}

}  // namespace octavo::ops
