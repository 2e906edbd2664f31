#include "octavo/ops/float8_grouped_linear.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "octavo/gemm/scaled_grouped_mm.h"
#include "octavo/ops/float8_grouped_linear_ops.h"
#include "octavo/ops/names.h"
#include "octavo/ops/scale_layout.h"
#include "octavo/quantize/allocate.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/quantize/offsets.h"
#include "octavo/quantize/quantize_grouped.h"

namespace octavo::ops {
namespace {

GroupedMatmulOptions product_of(const ProductSpec& product, at::ScalarType out_dtype) {
  return {.out_dtype = out_dtype, .fast_accumulation = product.fast_accumulation};
}

at::Tensor grouped_linear_kernel(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offs,
                                 std::string_view recipe, std::string_view keep_weight_transposed,
                                 const std::optional<at::Tensor>& w_rows,
                                 const std::optional<at::Tensor>& w_rows_scale,
                                 const std::optional<at::Tensor>& w_transposed,
                                 const std::optional<at::Tensor>& w_transposed_scale) {
  parse_keep("keep_weight_transposed", keep_weight_transposed);
  check_quantized_experts("w_transposed", w, w_transposed, w_transposed_scale);
  return std::get<0>(call_float8_grouped_linear_forward(x, w, offs, recipe, /*need_dx=*/false,
                                                        /*need_dw=*/false, /*keep=*/false, w_rows,
                                                        w_rows_scale));
}

// Both layouts of w (E, N, K) that the call wants, rows being given or not.
QuantizedOperand weights_of(const at::Tensor& w, const std::optional<at::Tensor>& w_rows,
                            const std::optional<at::Tensor>& w_rows_scale, const LayoutSpec& rows,
                            const std::optional<LayoutSpec>& transposed) {
  if (!w_rows) return quantize_expert_weights(w, {.rows = rows, .transposed = transposed});
  QuantizedOperand out;
  if (transposed) out = quantize_expert_weights(w, {.transposed = transposed});
  TORCH_CHECK(w_rows->sizes() == w.sizes() && w_rows->is_contiguous(),
              "float8_grouped_linear: w_rows: expected a contiguous ", w.sizes(), " as w, got ",
              w_rows->sizes(), " with strides ", w_rows->strides(),
              "; pass what quantize_weight gave of this w");
  const at::ScalarType dtype = rows.granularity.mx ? at::kByte : at::kFloat;
  TORCH_CHECK(w_rows_scale->scalar_type() == dtype,
              "float8_grouped_linear: w_rows_scale: expected ", dtype, ", got ",
              w_rows_scale->scalar_type(), "; quantise w by the same recipe");
  out.rows = from_bytes("w_rows_scale", *w_rows, *w_rows_scale, rows);
  return out;
}

GroupedForwardResult grouped_forward_kernel(const at::Tensor& x, const at::Tensor& w,
                                            const at::Tensor& offs, std::string_view recipe,
                                            bool need_dx, bool need_dw, bool keep_weight_transposed,
                                            const std::optional<at::Tensor>& w_rows,
                                            const std::optional<at::Tensor>& w_rows_scale) {
  const LinearSpec spec = resolve_experts_for(recipe, x.device());
  check_grouped_forward_arguments(x, w, offs);
  check_quantized_experts("w_rows", w, w_rows, w_rows_scale);
  TORCH_CHECK(x.size(1) == w.size(2),
              "float8_grouped_linear: x (M, K) and w (E, N, K) must agree in K, got ", x.sizes(),
              " and ", w.sizes(), "; transpose w if it is stored (E, K, N)");
  check_offsets("offs", offs, w.size(0), x.size(0), x.device());
  const bool keep_x = need_dw && !spec.dw.high_precision();
  const bool keep_w = need_dx && keep_weight_transposed;

  const GroupedOperand x_fp8 = quantize_grouped_operand(
      x, offs, {.rows = spec.forward.a, .transposed = keep_x ? spec.dw.b : std::nullopt});
  const QuantizedOperand w_fp8 =
      weights_of(w, w_rows, w_rows_scale, *spec.forward.b, keep_w ? spec.dx.b : std::nullopt);
  return {scaled_grouped_mm(x_fp8.rows, w_fp8.rows, x_fp8.offs,
                            product_of(spec.forward, x.scalar_type())),
          keep_x ? to_bytes(x_fp8.transposed.data) : absent(x, at::kByte),
          keep_x ? scale_bytes(x_fp8.transposed) : absent(x, at::kFloat),
          keep_w ? to_bytes(w_fp8.transposed.data) : absent(x, at::kByte),
          keep_w ? scale_bytes(w_fp8.transposed) : absent(x, at::kFloat)};
}

GroupedBackwardResult grouped_backward_kernel(const at::Tensor& dy,
                                              const std::optional<at::Tensor>& x,
                                              const std::optional<at::Tensor>& x_scale,
                                              const std::optional<at::Tensor>& w,
                                              const std::optional<at::Tensor>& w_scale,
                                              const at::Tensor& offs, std::string_view recipe,
                                              at::ScalarType dw_dtype) {
  return float8_grouped_linear_backward_kernel(dy, x, x_scale, w, w_scale, offs, recipe, dw_dtype,
                                               /*accumulate_into=*/std::nullopt);
}

}  // namespace

GroupedBackwardResult float8_grouped_linear_backward_kernel(
    const at::Tensor& dy, const std::optional<at::Tensor>& x,
    const std::optional<at::Tensor>& x_scale, const std::optional<at::Tensor>& w,
    const std::optional<at::Tensor>& w_scale, const at::Tensor& offs, std::string_view recipe,
    at::ScalarType dw_dtype, const std::optional<at::Tensor>& accumulate_into) {
  const LinearSpec spec = resolve_experts_for(recipe, dy.device());
  check_grouped_backward_arguments(dy, x, x_scale, w, w_scale, offs, spec);
  check_offsets("offs", offs, /*experts=*/-1, dy.size(0), dy.device());
  const bool dw_fp8 = x && !spec.dw.high_precision();
  GroupedOperand dy_fp8;
  if (w || dw_fp8) {
    dy_fp8 = quantize_grouped_operand(
        dy, offs,
        {.rows = w ? spec.dx.a : std::nullopt, .transposed = dw_fp8 ? spec.dw.a : std::nullopt});
  }

  at::Tensor dx = absent(dy, dy.scalar_type());
  if (w) {
    const ScaledTensor w_EKN =
        w_scale ? from_bytes("w_scale", *w, *w_scale, *spec.dx.b)
                : quantize_expert_weights(*w, {.transposed = spec.dx.b}).transposed;
    dx = scaled_grouped_mm(dy_fp8.rows, w_EKN, dy_fp8.offs, product_of(spec.dx, dy.scalar_type()));
    dy_fp8.rows = {};  // its memory can hold dw
  }

  at::Tensor dw = absent(dy, dw_dtype);
  if (dw_fp8) {
    GroupedMatmulOptions options = product_of(spec.dw, dw_dtype);
    options.accumulate_into = accumulate_into;
    dw = scaled_grouped_mm_k(dy_fp8.transposed,
                             grouped_from_bytes("x_scale", *x, *x_scale, *spec.dw.b, offs.size(0)),
                             dy_fp8.offs_transposed, options);
  } else if (x) {
    dw = grouped_mm_k(dy, *x, offs, dw_dtype);
    if (accumulate_into) dw = accumulate_into->add_(dw);
  }
  return {dx, dw};
}

QuantizedResult quantize_experts_weight(const at::Tensor& w, std::string_view recipe) {
  const LinearSpec spec = resolve_experts_for(recipe, w.device());
  check_grouped_weight(w, {"quantize_weight"});
  const QuantizedOperand out =
      quantize_expert_weights(w, {.rows = spec.forward.b, .transposed = spec.dx.b});
  return {to_bytes(out.rows.data), scale_bytes(out.rows), to_bytes(out.transposed.data),
          scale_bytes(out.transposed)};
}

LinearSpec resolve_experts_for(std::string_view recipe, at::Device device) {
  // As resolve_for(): a model calls with the same few recipes for ever.
  thread_local std::string last_recipe;
  thread_local c10::Device last_device = at::kMeta;
  thread_local LinearSpec last;
  if (recipe != last_recipe || device != last_device || recipe.empty()) {
    last = Recipe::parse(recipe).resolve_experts(architecture_of(device).flavour);
    last_recipe = recipe;
    last_device = device;
  }
  return last;
}

TORCH_LIBRARY_IMPL(octavo, CPU, m) {
  m.impl("float8_grouped_linear", &grouped_linear_kernel);
  m.impl("float8_grouped_linear_forward", &grouped_forward_kernel);
  m.impl("float8_grouped_linear_backward", &grouped_backward_kernel);
}
TORCH_LIBRARY_IMPL(octavo, CUDA, m) {
  m.impl("float8_grouped_linear", &grouped_linear_kernel);
  m.impl("float8_grouped_linear_forward", &grouped_forward_kernel);
  m.impl("float8_grouped_linear_backward", &grouped_backward_kernel);
}

}  // namespace octavo::ops

namespace octavo {

at::Tensor float8_grouped_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offs,
                                 const Recipe& recipe, const GroupedLinearOptions& options) {
  const std::string text = recipe.to_string();
  if (options.accumulate_into.defined()) {
    return ops::float8_grouped_linear_recorded(x, w, offs, text, options);
  }
  const std::string keep = ops::name(options.keep_weight_transposed);
  if (options.weight == nullptr) {
    return ops::call_float8_grouped_linear(x, w, offs, text, keep, {}, {}, {}, {});
  }
  return ops::call_float8_grouped_linear(x, w, offs, text, keep, options.weight->rows,
                                         options.weight->rows_scale, options.weight->transposed,
                                         options.weight->transposed_scale);
}

}  // namespace octavo
