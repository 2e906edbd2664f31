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
                                 std::string_view recipe, std::string_view keep_weight_transposed) {
  parse_keep("keep_weight_transposed", keep_weight_transposed);
  return std::get<0>(call_float8_grouped_linear_forward(x, w, offs, recipe, /*need_dx=*/false,
                                                        /*need_dw=*/false, /*keep=*/false));
}

GroupedForwardResult grouped_forward_kernel(const at::Tensor& x, const at::Tensor& w,
                                            const at::Tensor& offs, std::string_view recipe,
                                            bool need_dx, bool need_dw,
                                            bool keep_weight_transposed) {
  const LinearSpec spec = resolve_experts_for(recipe, x.device());
  check_grouped_forward_arguments(x, w, offs);
  TORCH_CHECK(x.size(1) == w.size(2),
              "float8_grouped_linear: x (M, K) and w (E, N, K) must agree in K, got ", x.sizes(),
              " and ", w.sizes(), "; transpose w if it is stored (E, K, N)");
  check_offsets("offs", offs, w.size(0), x.size(0), x.device());
  const bool keep_x = need_dw && !spec.dw.high_precision();
  const bool keep_w = need_dx && keep_weight_transposed;

  const GroupedOperand x_fp8 = quantize_grouped_operand(
      x, offs, {.rows = spec.forward.a, .transposed = keep_x ? spec.dw.b : std::nullopt});
  const QuantizedOperand w_fp8 = quantize_expert_weights(
      w, {.rows = spec.forward.b, .transposed = keep_w ? spec.dx.b : std::nullopt});
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
    dw = scaled_grouped_mm_k(dy_fp8.transposed,
                             grouped_from_bytes("x_scale", *x, *x_scale, *spec.dw.b, offs.size(0)),
                             dy_fp8.offs_transposed, product_of(spec.dw, dw_dtype));
  } else if (x) {
    dw = grouped_mm_k(dy, *x, offs, dw_dtype);
  }
  return {dx, dw};
}

}  // namespace

LinearSpec resolve_experts_for(std::string_view recipe, at::Device device) {
  return Recipe::parse(recipe).resolve_experts(architecture_of(device).flavour);
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
                                 const Recipe& recipe, KeepWeightTransposed keep) {
  return ops::call_float8_grouped_linear(x, w, offs, recipe.to_string(), ops::name(keep));
}

}  // namespace octavo
