#include "octavo/ops/float8_grouped_linear_ops.h"

#include <c10/util/Exception.h>

#include "octavo/ops/below.h"
#include "octavo/ops/find_operator.h"
#include "octavo/quantize/offsets.h"

namespace octavo::ops {
namespace {

void check_grouped_dtype(const char* op, const char* argument, const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, op, ": ",
              argument, " must be float32, bfloat16 or float16, got ", dtype, "; convert it with ",
              argument, ".to(torch.float32)");
}

// An operand kept for backward: FP8 bytes with their scale, or high precision without one.
void check_grouped_saved(const char* op, const char* argument,
                         const std::optional<at::Tensor>& tensor,
                         const std::optional<at::Tensor>& scale, std::int64_t dimensions) {
  if (!tensor) {
    TORCH_CHECK(!scale, op, "_backward: ", argument, "_scale is given without ", argument,
                "; give both or none");
    return;
  }
  if (!scale) check_grouped_dtype(op, argument, *tensor);
  TORCH_CHECK(tensor->dim() == dimensions && (!scale || tensor->scalar_type() == at::kByte), op,
              "_backward: ", argument, " must have ", dimensions,
              " dimensions, and with a scale be bytes, got ", tensor->scalar_type(), " with ",
              tensor->dim(), " dimensions; pass both as ", op, "_forward gave them");
}

}  // namespace

at::Tensor call_float8_grouped_linear(const at::Tensor& x, const at::Tensor& w,
                                      const at::Tensor& offs, std::string_view recipe,
                                      std::string_view keep_weight_transposed,
                                      const std::optional<at::Tensor>& w_rows,
                                      const std::optional<at::Tensor>& w_rows_scale,
                                      const std::optional<at::Tensor>& w_transposed,
                                      const std::optional<at::Tensor>& w_transposed_scale) {
  static const auto op =
      find_operator<decltype(call_float8_grouped_linear)>("octavo::float8_grouped_linear");
  return op.call(x, w, offs, recipe, keep_weight_transposed, w_rows, w_rows_scale, w_transposed,
                 w_transposed_scale);
}

GroupedForwardResult call_float8_grouped_linear_forward(
    const at::Tensor& x, const at::Tensor& w, const at::Tensor& offs, std::string_view recipe,
    bool need_dx, bool need_dw, bool keep_weight_transposed,
    const std::optional<at::Tensor>& w_rows, const std::optional<at::Tensor>& w_rows_scale) {
  static const auto op = find_operator<decltype(call_float8_grouped_linear_forward)>(
      "octavo::float8_grouped_linear_forward");
  return op.call(x, w, offs, recipe, need_dx, need_dw, keep_weight_transposed, w_rows,
                 w_rows_scale);
}

GroupedBackwardResult call_float8_grouped_linear_backward(
    const at::Tensor& dy, const std::optional<at::Tensor>& x,
    const std::optional<at::Tensor>& x_scale, const std::optional<at::Tensor>& w,
    const std::optional<at::Tensor>& w_scale, const at::Tensor& offs, std::string_view recipe,
    at::ScalarType dw_dtype) {
  static const auto op = find_operator<decltype(call_float8_grouped_linear_backward)>(
      "octavo::float8_grouped_linear_backward");
  return op.call(dy, x, x_scale, w, w_scale, offs, recipe, dw_dtype);
}

void check_grouped_weight(const at::Tensor& w, const OperandNames& names) {
  TORCH_CHECK(w.dim() == 3, names.op, ": ", names.w, " must be (E, N, K), got ", w.dim(),
              " dimensions; stack the experts' weights");
  check_grouped_dtype(names.op, names.w, w);
}

void check_quantized_experts(const char* argument, const at::Tensor& w,
                             const std::optional<at::Tensor>& bytes,
                             const std::optional<at::Tensor>& scale) {
  TORCH_CHECK(bytes.has_value() == scale.has_value(), "float8_grouped_linear: expected ", argument,
              " and ", argument, "_scale together, got only ", bytes ? argument : "the scale",
              "; pass both of what quantize_weight gave");
  if (!bytes) return;
  TORCH_CHECK(bytes->scalar_type() == at::kByte && bytes->dim() == 3 && scale->dim() == 1,
              "float8_grouped_linear: ", argument, " must be three dimensions of bytes with flat ",
              "scales, got ", bytes->scalar_type(), " with ", bytes->dim(),
              " dimensions and scales with ", scale->dim(), "; pass what quantize_weight gave");
  check_one_device("float8_grouped_linear", {w, *bytes, *scale});
}

void check_grouped_forward_arguments(const at::Tensor& x, const at::Tensor& w,
                                     const at::Tensor& offs, const OperandNames& names) {
  TORCH_CHECK(x.dim() == 2, names.op, ": ", names.x,
              " must be (M, K), tokens sorted by expert, got ", x.dim(),
              " dimensions; flatten the leading ones");
  check_grouped_weight(w, names);
  check_grouped_dtype(names.op, names.x, x);
  check_offsets_type("offs", offs);
  check_one_device(names.op, {x, w, offs});
}

void check_grouped_backward_arguments(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                                      const std::optional<at::Tensor>& x_scale,
                                      const std::optional<at::Tensor>& w,
                                      const std::optional<at::Tensor>& w_scale,
                                      const at::Tensor& offs, const LinearSpec& spec,
                                      const OperandNames& names) {
  TORCH_CHECK(dy.dim() == 2, names.op, "_backward: dy must be (M, N), got ", dy.dim(),
              " dimensions; flatten the leading ones");
  check_grouped_dtype(names.op, "dy", dy);
  check_grouped_saved(names.op, names.x, x, x_scale, 2);
  check_grouped_saved(names.op, names.w, w, w_scale, 3);
  check_offsets_type("offs", offs);
  TORCH_CHECK(!x || x_scale.has_value() != spec.dw.high_precision(), names.op,
              "_backward: this recipe needs ", names.x,
              spec.dw.high_precision() ? " itself, without a scale" : " as bytes with a scale",
              "; pass what ", names.op, "_forward saves for it");
  const at::Tensor none;
  check_one_device(std::string(names.op) + "_backward",
                   {dy, offs, x.value_or(none), x_scale.value_or(none), w.value_or(none),
                    w_scale.value_or(none)});
}

}  // namespace octavo::ops
