#include "octavo/ops/float8_linear.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <vector>

#include "octavo/gemm/scaled_mm.h"
#include "octavo/ops/bias_gradient.h"
#include "octavo/ops/float8_linear_ops.h"
#include "octavo/ops/names.h"
#include "octavo/ops/scale_layout.h"
#include "octavo/quantize/allocate.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/quantize/quantize.h"

namespace octavo::ops {
namespace {

// (..., C) as a matrix (R, C): itself, or a view where one exists.
at::Tensor as_matrix(const at::Tensor& x) {
  if (x.dim() == 2) return x;
  std::int64_t rows = 1;
  for (std::int64_t i = 0; i + 1 < x.dim(); ++i) rows *= x.size(i);
  return x.reshape({rows, x.size(-1)});  // not -1, which is ambiguous for empty x
}

// A matrix (R, columns) in the leading sizes of `like`.
at::Tensor with_leading_sizes_of(const at::Tensor& matrix, const at::Tensor& like) {
  if (like.dim() == 2) return matrix;
  std::vector<std::int64_t> sizes = like.sizes().vec();
  sizes.back() = matrix.size(1);
  return matrix.view(sizes);
}

// What stands for an output nobody asked for.
at::Tensor absent(const at::Tensor& like, at::ScalarType dtype) {
  return empty_on(like.device(), {0}, dtype);
}

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
                                std::string_view keep_weight_transposed) {
  parse_keep("keep_weight_transposed", keep_weight_transposed);
  return std::get<0>(call_float8_linear_forward(x, w, bias, recipe, /*need_dx=*/false,
                                                /*need_dw=*/false, /*keep=*/false));
}

ForwardResult forward_kernel(const at::Tensor& x, const at::Tensor& w,
                             const std::optional<at::Tensor>& bias, std::string_view recipe,
                             bool need_dx, bool need_dw, bool keep_weight_transposed) {
  const LinearSpec spec = resolve_for(recipe, x.device());
  check_forward_arguments(x, w, bias);
  check_matching_sizes(x, w, bias);
  const bool keep_x = need_dw && !spec.dw.high_precision();
  const bool keep_w = need_dx && keep_weight_transposed;

  const QuantizedOperand x_fp8 = quantize_operand(
      as_matrix(x), {.rows = spec.forward.a, .transposed = keep_x ? spec.dw.b : std::nullopt});
  const QuantizedOperand w_fp8 = quantize_operand(
      w, {.rows = spec.forward.b, .transposed = keep_w ? spec.dx.b : std::nullopt});
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

BackwardResult backward_kernel(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                               const std::optional<at::Tensor>& x_scale,
                               const std::optional<at::Tensor>& w,
                               const std::optional<at::Tensor>& w_scale, std::string_view recipe,
                               at::ScalarType dw_dtype, std::optional<at::ScalarType> dbias_dtype) {
  const LinearSpec spec = resolve_for(recipe, dy.device());
  check_backward_arguments(dy, x, x_scale, w, w_scale, spec);
  const bool dw_fp8 = x && !spec.dw.high_precision();
  const at::Tensor dy_MN = as_matrix(dy);
  QuantizedOperand dy_fp8;
  if (w || dw_fp8) {
    dy_fp8 = quantize_operand(dy_MN, {.rows = w ? spec.dx.a : std::nullopt,
                                      .transposed = dw_fp8 ? spec.dw.a : std::nullopt});
  }

  at::Tensor dx = absent(dy, dy.scalar_type());
  if (w) {
    const ScaledTensor w_KN = w_scale ? from_bytes("w_scale", *w, *w_scale, *spec.dx.b)
                                      : quantize_operand(*w, {.transposed = spec.dx.b}).transposed;
    dx = with_leading_sizes_of(
        scaled_mm(dy_fp8.rows, w_KN,
                  {.out_dtype = dy.scalar_type(), .fast_accumulation = spec.dx.fast_accumulation}),
        dy);
    dy_fp8.rows = {};  // its memory can hold dw
  }

  at::Tensor dw = absent(dy, dw_dtype);
  if (dw_fp8) {
    dw = scaled_mm(dy_fp8.transposed, from_bytes("x_scale", *x, *x_scale, *spec.dw.b),
                   {.out_dtype = dw_dtype, .fast_accumulation = spec.dw.fast_accumulation});
  } else if (x) {
    dw = at::mm(dy_MN.t(), as_matrix(*x));  // (N, M) . (M, K), in dy's dtype
    if (dw.scalar_type() != dw_dtype) dw = dw.to(dw_dtype);
  }

  at::Tensor dbias = absent(dy, dbias_dtype.value_or(at::kFloat));
  if (dbias_dtype) dbias = bias_gradient(dy_MN, *dbias_dtype);
  return {dx, dw, dbias};
}

}  // namespace

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
}
TORCH_LIBRARY_IMPL(octavo, CUDA, m) {
  m.impl("float8_linear", &float8_linear_kernel);
  m.impl("float8_linear_forward", &forward_kernel);
  m.impl("float8_linear_backward", &backward_kernel);
}

}  // namespace octavo::ops

namespace octavo {

at::Tensor float8_linear(const at::Tensor& x, const at::Tensor& w,
                         const std::optional<at::Tensor>& bias, const Recipe& recipe,
                         KeepWeightTransposed keep) {
  return ops::call_float8_linear(x, w, bias, recipe.to_string(), ops::name(keep));
}

}  // namespace octavo
