// Shapes of float8_grouped_linear's operators on symbolic sizes: nothing here reads size() or
// compares sizes. Real kernels check that sizes agree.
#include <ATen/Functions.h>
#include <torch/library.h>

#include "octavo/ops/float8_grouped_linear_ops.h"
#include "octavo/ops/meta.h"
#include "octavo/ops/names.h"
#include "octavo/quantize/quantize_grouped.h"

namespace octavo::ops {
namespace {

at::Tensor grouped_linear_meta(const at::Tensor& x, const at::Tensor& w, const at::Tensor& offs,
                               std::string_view recipe, std::string_view keep_weight_transposed,
                               const std::optional<at::Tensor>& w_rows,
                               const std::optional<at::Tensor>& w_rows_scale,
                               const std::optional<at::Tensor>& w_transposed,
                               const std::optional<at::Tensor>& w_transposed_scale) {
  resolve_experts_for(recipe, x.device());
  parse_keep("keep_weight_transposed", keep_weight_transposed);
  check_grouped_forward_arguments(x, w, offs);
  check_quantized_experts("w_rows", w, w_rows, w_rows_scale);
  check_quantized_experts("w_transposed", w, w_transposed, w_transposed_scale);
  return at::empty_symint({x.sym_size(0), w.sym_size(1)}, x.options());
}

GroupedForwardResult grouped_forward_meta(const at::Tensor& x, const at::Tensor& w,
                                          const at::Tensor& offs, std::string_view recipe,
                                          bool need_dx, bool need_dw, bool keep_weight_transposed,
                                          const std::optional<at::Tensor>& w_rows,
                                          const std::optional<at::Tensor>& w_rows_scale) {
  const LinearSpec spec = resolve_experts_for(recipe, x.device());
  check_grouped_forward_arguments(x, w, offs);
  check_quantized_experts("w_rows", w, w_rows, w_rows_scale);
  const c10::SymInt m = x.sym_size(0), e = w.sym_size(0), n = w.sym_size(1), k = w.sym_size(2);
  const bool keep_x = need_dw && !spec.dw.high_precision();
  const bool keep_w = need_dx && keep_weight_transposed;
  at::Tensor x_bytes = nothing(x, at::kByte), x_scale = nothing(x, at::kFloat);
  if (keep_x) {
    const Granularity& granularity = spec.dw.b->granularity;
    const c10::SymInt mt = grouped_columns(m, e, granularity);
    x_bytes = at::empty_symint({k, mt}, x.options().dtype(at::kByte));
    x_scale = empty_flat_grouped_scale_meta(x, granularity, e, k, mt);
  }
  at::Tensor w_bytes = nothing(x, at::kByte), w_scale = nothing(x, at::kFloat);
  if (keep_w) {
    w_bytes = at::empty_symint({e, k, n}, x.options().dtype(at::kByte));
    w_scale = empty_flat_expert_scale_meta(x, spec.dx.b->granularity, e, k, n);
  }
  return {at::empty_symint({m, n}, x.options()), x_bytes, x_scale, w_bytes, w_scale};
}

GroupedBackwardResult grouped_backward_meta(const at::Tensor& dy,
                                            const std::optional<at::Tensor>& x,
                                            const std::optional<at::Tensor>& x_scale,
                                            const std::optional<at::Tensor>& w,
                                            const std::optional<at::Tensor>& w_scale,
                                            const at::Tensor& offs, std::string_view recipe,
                                            at::ScalarType dw_dtype) {
  const LinearSpec spec = resolve_experts_for(recipe, dy.device());
  check_grouped_backward_arguments(dy, x, x_scale, w, w_scale, offs, spec);
  at::Tensor dx = nothing(dy, dy.scalar_type());
  if (w) {
    dx = at::empty_symint({dy.sym_size(0), w->sym_size(w_scale ? 1 : 2)}, dy.options());
  }
  at::Tensor dw = nothing(dy, dw_dtype);
  if (x) {
    dw = at::empty_symint({offs.sym_size(0), dy.sym_size(1), x->sym_size(x_scale ? 0 : 1)},
                          dy.options().dtype(dw_dtype));
  }
  return {dx, dw};
}

}  // namespace

QuantizedResult quantize_experts_weight_meta(const at::Tensor& w, std::string_view recipe) {
  const LinearSpec spec = resolve_experts_for(recipe, w.device());
  check_grouped_weight(w, {"quantize_weight"});
  const c10::SymInt e = w.sym_size(0), n = w.sym_size(1), k = w.sym_size(2);
  const at::TensorOptions bytes = w.options().dtype(at::kByte);
  return {at::empty_symint({e, n, k}, bytes),
          empty_flat_expert_scale_meta(w, spec.forward.b->granularity, e, n, k),
          at::empty_symint({e, k, n}, bytes),
          empty_flat_expert_scale_meta(w, spec.dx.b->granularity, e, k, n)};
}

TORCH_LIBRARY_IMPL(octavo, Meta, m) {
  m.impl("float8_grouped_linear", &grouped_linear_meta);
  m.impl("float8_grouped_linear_forward", &grouped_forward_meta);
  m.impl("float8_grouped_linear_backward", &grouped_backward_meta);
}

}  // namespace octavo::ops
