#include "octavo/ops/float8_linear.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <string>
#include <utility>

#include "octavo/gemm/scaled_mm.h"
#include "octavo/ops/below.h"
#include "octavo/ops/bias_gradient.h"
#include "octavo/ops/float8_grouped_linear_ops.h"
#include "octavo/ops/float8_linear_ops.h"
#include "octavo/ops/names.h"
#include "octavo/ops/operands.h"
#include "octavo/ops/scale_layout.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/quantize/quantize.h"

namespace octavo::ops {
namespace {

void check_matching_sizes(const at::Tensor& x, const at::Tensor& w,
                          const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(x.size(-1) == w.size(1),
              "float8_linear: x (..., K) and w (N, K) must agree in K, got ", x.sizes(), " and ",
              w.sizes(), "; transpose w if it is stored (K, N)");
  TORCH_CHECK(!bias || bias->size(0) == w.size(0), "float8_linear: bias must hold one value for ",
              "each of w's ", w.size(0), " rows, got ", bias ? bias->sizes() : w.sizes());
}

at::Tensor float8_linear_kernel(const at::Tensor& x, const at::Tensor& w,
                                const std::optional<at::Tensor>& bias, std::string_view recipe,
                                std::string_view keep_weight_transposed,
                                const std::optional<at::Tensor>& w_rows,
                                const std::optional<at::Tensor>& w_rows_scale,
                                const std::optional<at::Tensor>& w_transposed,
                                const std::optional<at::Tensor>& w_transposed_scale) {
  parse_keep("keep_weight_transposed", keep_weight_transposed);
  check_quantized("w_transposed", w, w_transposed, w_transposed_scale);
  return std::get<0>(call_float8_linear_forward(x, w, bias, recipe, /*need_dx=*/false,
                                                /*need_dw=*/false, /*keep=*/false, w_rows,
                                                w_rows_scale, /*x_rows=*/std::nullopt,
                                                /*x_rows_scale=*/std::nullopt));
}

QuantizedResult quantize_weight_kernel(const at::Tensor& w, std::string_view recipe) {
  if (w.dim() == 3) return quantize_experts_weight(w, recipe);
  const LinearSpec spec = resolve_for(recipe, w.device());
  check_weight_argument(w, {"quantize_weight"});
  const QuantizedLayouts layouts =
      layouts_of(quantize_operand(w, {.rows = spec.forward.b, .transposed = spec.dx.b}));
  return {layouts.rows, layouts.rows_scale, layouts.transposed, layouts.transposed_scale};
}

QuantizedResult quantize_input_kernel(const at::Tensor& x, std::string_view recipe, bool need_dw) {
  const LinearSpec spec = resolve_for(recipe, x.device());
  check_input_argument(x, {"quantize_input"});
  const bool transposed = need_dw && !spec.dw.high_precision();
  const QuantizedLayouts layouts = layouts_of(
      quantize_operand(as_matrix(x), {.rows = spec.forward.a,
                                      .transposed = transposed ? spec.dw.b : std::nullopt,
                                      .together = Together::kRows}));
  return {layouts.rows, layouts.rows_scale, transposed ? layouts.transposed : absent(x, at::kByte),
          transposed ? layouts.transposed_scale : absent(x, at::kFloat)};
}

ForwardResult forward_kernel(const at::Tensor& x, const at::Tensor& w,
                             const std::optional<at::Tensor>& bias, std::string_view recipe,
                             bool need_dx, bool need_dw, bool keep_weight_transposed,
                             const std::optional<at::Tensor>& w_rows,
                             const std::optional<at::Tensor>& w_rows_scale,
                             const std::optional<at::Tensor>& x_rows,
                             const std::optional<at::Tensor>& x_rows_scale) {
  return float8_linear_forward_kernel(x, w, bias, recipe, need_dx, need_dw, keep_weight_transposed,
                                      w_rows, w_rows_scale, x_rows, x_rows_scale);
}

BackwardResult backward_kernel(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                               const std::optional<at::Tensor>& x_scale,
                               const std::optional<at::Tensor>& w,
                               const std::optional<at::Tensor>& w_scale, std::string_view recipe,
                               at::ScalarType dw_dtype, std::optional<at::ScalarType> dbias_dtype) {
  return float8_linear_backward_kernel(dy, x, x_scale, w, w_scale, recipe, dw_dtype, dbias_dtype,
                                       /*accumulate_into=*/std::nullopt,
                                       /*dx_into=*/std::nullopt);
}

}  // namespace

ForwardResult float8_linear_forward_kernel(
    const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias,
    std::string_view recipe, bool need_dx, bool need_dw, bool keep_weight_transposed,
    const std::optional<at::Tensor>& w_rows, const std::optional<at::Tensor>& w_rows_scale,
    const std::optional<at::Tensor>& x_rows, const std::optional<at::Tensor>& x_rows_scale,
    const at::Tensor& w_amax) {
  const LinearSpec spec = resolve_for(recipe, x.device());
  check_forward_arguments(x, w, bias);
  check_quantized("w_rows", w, w_rows, w_rows_scale);
  check_quantized("x_rows", x, x_rows, x_rows_scale);
  check_matching_sizes(x, w, bias);
  const bool keep_x = need_dw && !spec.dw.high_precision();
  const bool keep_w = need_dx && keep_weight_transposed;

  const QuantizedOperand x_fp8 =
      operand_of("x_rows", "x_rows_scale", as_matrix(x), x_rows, x_rows_scale, *spec.forward.a,
                 keep_x ? spec.dw.b : std::nullopt);
  const QuantizedOperand w_fp8 =
      operand_of("w_rows", "w_rows_scale", w, w_rows, w_rows_scale, *spec.forward.b,
                 keep_w ? spec.dx.b : std::nullopt, w_amax);
  const at::Tensor y = scaled_mm(x_fp8.rows, w_fp8.rows,
                                 {.out_dtype = x.scalar_type(),
                                  .bias = bias,
                                  .fast_accumulation = spec.forward.fast_accumulation});
  return {with_leading_sizes_of(y, x),
          keep_x ? to_bytes(x_fp8.transposed.data) : absent(x, at::kByte),
          keep_x ? scale_bytes(x_fp8.transposed) : absent(x, at::kFloat),
          keep_w ? to_bytes(w_fp8.transposed.data) : absent(x, at::kByte),
          keep_w ? scale_bytes(w_fp8.transposed) : absent(x, at::kFloat)};
}

BackwardResult float8_linear_backward_kernel(
    const at::Tensor& dy, const std::optional<at::Tensor>& x,
    const std::optional<at::Tensor>& x_scale, const std::optional<at::Tensor>& w,
    const std::optional<at::Tensor>& w_scale, std::string_view recipe, at::ScalarType dw_dtype,
    std::optional<at::ScalarType> dbias_dtype, const std::optional<at::Tensor>& accumulate_into,
    const std::optional<at::Tensor>& dx_into, const at::Tensor& w_amax) {
  const LinearSpec spec = resolve_for(recipe, dy.device());
  check_backward_arguments(dy, x, x_scale, w, w_scale, spec);
  const bool dw_fp8 = x && !spec.dw.high_precision();
  const at::Tensor dy_MN = as_matrix(dy);
  QuantizedOperand dy_fp8;
  if (w || dw_fp8) {
    dy_fp8 = quantize_operand(dy_MN, {.rows = w ? spec.dx.a : std::nullopt,
                                      .transposed = dw_fp8 ? spec.dw.a : std::nullopt,
                                      .together = Together::kBoth});
  }

  at::Tensor dx = absent(dy, dy.scalar_type());
  if (w) {
    const ScaledTensor w_KN = w_scale ? from_bytes("w_scale", *w, *w_scale, *spec.dx.b)
                                      : quantize_operand(*w, {.transposed = spec.dx.b,
                                                              .together = Together::kBoth,
                                                              .amax = {.tensor = w_amax}})
                                            .transposed;
    dx = with_leading_sizes_of(
        scaled_mm(dy_fp8.rows, w_KN,
                  {.out_dtype = dy.scalar_type(),
                   .fast_accumulation = spec.dx.fast_accumulation,
                   .accumulate_into =
                       dx_into ? std::optional<at::Tensor>(as_matrix(*dx_into)) : std::nullopt}),
        dy);
    dy_fp8.rows = {};  // its memory can hold dw
  }

  at::Tensor dw = absent(dy, dw_dtype);
  if (dw_fp8) {
    dw = scaled_mm(dy_fp8.transposed, from_bytes("x_scale", *x, *x_scale, *spec.dw.b),
                   {.out_dtype = dw_dtype,
                    .fast_accumulation = spec.dw.fast_accumulation,
                    .accumulate_into = accumulate_into});
  } else if (x) {
    dw = high_precision_dw(dy_MN, *x, dw_dtype, accumulate_into);
  }

  at::Tensor dbias = absent(dy, dbias_dtype.value_or(at::kFloat));
  if (dbias_dtype) dbias = bias_gradient(dy_MN, *dbias_dtype);
  return {dx, dw, dbias};
}

LinearSpec resolve_for(std::string_view recipe, at::Device device) {
  // A model calls with the same few recipes for ever; parsing one costs as much as a launch.
  thread_local std::string last_recipe;
  thread_local c10::Device last_device = at::kMeta;
  thread_local LinearSpec last;
  if (recipe != last_recipe || device != last_device || recipe.empty()) {
    last = Recipe::parse(recipe).resolve(architecture_of(device).flavour);
    last_recipe = recipe;
    last_device = device;
  }
  return last;
}

TORCH_LIBRARY_IMPL(octavo, CPU, m) {
  m.impl("float8_linear", &float8_linear_kernel);
  m.impl("float8_linear_forward", &forward_kernel);
  m.impl("float8_linear_backward", &backward_kernel);
  m.impl("quantize_input", &quantize_input_kernel);
  m.impl("quantize_weight", &quantize_weight_kernel);
}
TORCH_LIBRARY_IMPL(octavo, CUDA, m) {
  m.impl("float8_linear", &float8_linear_kernel);
  m.impl("float8_linear_forward", &forward_kernel);
  m.impl("float8_linear_backward", &backward_kernel);
  m.impl("quantize_input", &quantize_input_kernel);
  m.impl("quantize_weight", &quantize_weight_kernel);
}

}  // namespace octavo::ops

namespace octavo {

at::Tensor float8_linear(const at::Tensor& x, const at::Tensor& w,
                         const std::optional<at::Tensor>& bias, const Recipe& recipe,
                         const Float8LinearOptions& options) {
  const std::string text = recipe.to_string();
  const bool takes_amax = options.weight_amax.defined() && ops::records_without_autocast(x);
  if (options.accumulate_into.defined() || options.input != nullptr || takes_amax) {
    return ops::float8_linear_recorded(x, w, bias, text, options);
  }
  const std::string keep = ops::name(options.keep_weight_transposed);
  if (options.weight == nullptr)
    return ops::call_float8_linear(x, w, bias, text, keep, {}, {}, {}, {});
  return ops::call_float8_linear(x, w, bias, text, keep, options.weight->rows,
                                 options.weight->rows_scale, options.weight->transposed,
                                 options.weight->transposed_scale);
}

QuantizedLayouts quantize_weight(const at::Tensor& w, const Recipe& recipe,
                                 const at::Tensor& amax) {
  if (amax.defined()) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const LinearSpec spec = ops::resolve_for(recipe.to_string(), w.device());
    ops::check_weight_argument(w, {"quantize_weight"});
    return ops::layouts_of(quantize_operand(
        w, {.rows = spec.forward.b, .transposed = spec.dx.b, .amax = {.tensor = amax}}));
  }
  auto [rows, rows_scale, transposed, transposed_scale] =
      ops::call_quantize_weight(w, recipe.to_string());
  return {std::move(rows), std::move(rows_scale), std::move(transposed),
          std::move(transposed_scale)};
}

QuantizedLayouts quantize_input(const at::Tensor& x, const Recipe& recipe, bool need_dw) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const LinearSpec spec = ops::resolve_for(recipe.to_string(), x.device());
  ops::check_input_argument(x, {"quantize_input"});
  const bool transposed = need_dw && !spec.dw.high_precision();
  return ops::layouts_of(quantize_operand(
      ops::as_matrix(x),
      {.rows = spec.forward.a, .transposed = transposed ? spec.dw.b : std::nullopt}));
}

}  // namespace octavo
