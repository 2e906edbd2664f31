// Shapes of float8_linear's operators on symbolic sizes. Nothing here reads size() or compares
// sizes: that would tie a compiled graph to one length. Real kernels check that sizes agree.
#include <ATen/Functions.h>
#include <torch/library.h>

#include <vector>

#include "octavo/ops/below.h"
#include "octavo/ops/float8_grouped_linear_ops.h"
#include "octavo/ops/float8_linear_ops.h"
#include "octavo/ops/meta.h"
#include "octavo/ops/names.h"

namespace octavo::ops {
namespace {

at::Tensor empty_bytes(const at::Tensor& like, const c10::SymInt& rows,
                       const c10::SymInt& columns) {
  return at::empty_symint({rows, columns}, like.options().dtype(at::kByte));
}

at::Tensor float8_linear_meta(const at::Tensor& x, const at::Tensor& w,
                              const std::optional<at::Tensor>& bias, std::string_view recipe,
                              std::string_view keep_weight_transposed,
                              const std::optional<at::Tensor>& w_rows,
                              const std::optional<at::Tensor>& w_rows_scale,
                              const std::optional<at::Tensor>& w_transposed,
                              const std::optional<at::Tensor>& w_transposed_scale) {
  resolve_for(recipe, x.device());
  parse_keep("keep_weight_transposed", keep_weight_transposed);
  check_forward_arguments(x, w, bias);
  check_quantized("w_rows", w, w_rows, w_rows_scale);
  check_quantized("w_transposed", w, w_transposed, w_transposed_scale);
  return empty_like_with_columns(x, w.sym_size(0));
}

ForwardResult forward_meta(const at::Tensor& x, const at::Tensor& w,
                           const std::optional<at::Tensor>& bias, std::string_view recipe,
                           bool need_dx, bool need_dw, bool keep_weight_transposed,
                           const std::optional<at::Tensor>& w_rows,
                           const std::optional<at::Tensor>& w_rows_scale,
                           const std::optional<at::Tensor>& x_rows,
                           const std::optional<at::Tensor>& x_rows_scale) {
  const LinearSpec spec = resolve_for(recipe, x.device());
  check_forward_arguments(x, w, bias);
  check_quantized("w_rows", w, w_rows, w_rows_scale);
  check_quantized("x_rows", x, x_rows, x_rows_scale);
  const c10::SymInt m = leading_size(x), n = w.sym_size(0), k = w.sym_size(1);
  const bool keep_x = need_dw && !spec.dw.high_precision();
  const bool keep_w = need_dx && keep_weight_transposed;
  return {empty_like_with_columns(x, n), keep_x ? empty_bytes(x, k, m) : nothing(x, at::kByte),
          keep_x ? empty_flat_scale_meta(x, spec.dw.b->granularity, k, m) : nothing(x, at::kFloat),
          keep_w ? empty_bytes(x, k, n) : nothing(x, at::kByte),
          keep_w ? empty_flat_scale_meta(x, spec.dx.b->granularity, k, n) : nothing(x, at::kFloat)};
}

BackwardResult backward_meta(const at::Tensor& dy, const std::optional<at::Tensor>& x,
                             const std::optional<at::Tensor>& x_scale,
                             const std::optional<at::Tensor>& w,
                             const std::optional<at::Tensor>& w_scale, std::string_view recipe,
                             at::ScalarType dw_dtype, std::optional<at::ScalarType> dbias_dtype) {
  const LinearSpec spec = resolve_for(recipe, dy.device());
  check_backward_arguments(dy, x, x_scale, w, w_scale, spec);
  const at::Tensor none;
  check_one_device("float8_linear_backward", {dy, x.value_or(none), x_scale.value_or(none),
                                              w.value_or(none), w_scale.value_or(none)});
  const c10::SymInt n = dy.sym_size(-1);
  at::Tensor dx = nothing(dy, dy.scalar_type());
  if (w) dx = empty_like_with_columns(dy, w->sym_size(w_scale ? 0 : 1));
  at::Tensor dw = nothing(dy, dw_dtype);
  if (x) {
    const c10::SymInt k = x_scale ? x->sym_size(0) : x->sym_size(-1);
    dw = at::empty_symint({n, k}, dy.options().dtype(dw_dtype));
  }
  at::Tensor dbias = nothing(dy, dbias_dtype.value_or(at::kFloat));
  if (dbias_dtype) dbias = at::empty_symint({n}, dy.options().dtype(*dbias_dtype));
  return {dx, dw, dbias};
}

QuantizedResult quantize_input_meta(const at::Tensor& x, std::string_view recipe, bool need_dw) {
  const LinearSpec spec = resolve_for(recipe, x.device());
  check_input_argument(x, {"quantize_input"});
  const c10::SymInt m = leading_size(x), k = x.sym_size(-1);
  const bool transposed = need_dw && !spec.dw.high_precision();
  return {
      empty_bytes(x, m, k), empty_flat_scale_meta(x, spec.forward.a->granularity, m, k),
      transposed ? empty_bytes(x, k, m) : nothing(x, at::kByte),
      transposed ? empty_flat_scale_meta(x, spec.dw.b->granularity, k, m) : nothing(x, at::kFloat)};
}

QuantizedResult quantize_weight_meta(const at::Tensor& w, std::string_view recipe) {
  if (w.dim() == 3) return quantize_experts_weight_meta(w, recipe);
  const LinearSpec spec = resolve_for(recipe, w.device());
  check_weight_argument(w, {"quantize_weight"});
  const c10::SymInt n = w.sym_size(0), k = w.sym_size(1);
  return {empty_bytes(w, n, k), empty_flat_scale_meta(w, spec.forward.b->granularity, n, k),
          empty_bytes(w, k, n), empty_flat_scale_meta(w, spec.dx.b->granularity, k, n)};
}

}  // namespace

TORCH_LIBRARY_IMPL(octavo, Meta, m) {
  m.impl("float8_linear", &float8_linear_meta);
  m.impl("float8_linear_forward", &forward_meta);
  m.impl("float8_linear_backward", &backward_meta);
  m.impl("quantize_input", &quantize_input_meta);
  m.impl("quantize_weight", &quantize_weight_meta);
}

}  // namespace octavo::ops
