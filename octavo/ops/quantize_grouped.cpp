// octavo::quantize_grouped and octavo::quantize_expert_weights: one layout of a grouped product's
// operand.
#include "octavo/quantize/quantize_grouped.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "octavo/ops/below.h"
#include "octavo/ops/find_operator.h"
#include "octavo/ops/meta.h"
#include "octavo/ops/names.h"
#include "octavo/quantize/offsets.h"

namespace octavo::ops {
namespace {

using GroupedResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using ExpertsResult = std::tuple<at::Tensor, at::Tensor>;

GroupedResult call_quantize_grouped(const at::Tensor& x, const at::Tensor& offs,
                                    std::string_view format, std::string_view granularity,
                                    std::string_view layout, std::string_view scale_rounding,
                                    std::string_view mx_rounding) {
  static const auto op = find_operator<decltype(call_quantize_grouped)>("octavo::quantize_grouped");
  return op.call(x, offs, format, granularity, layout, scale_rounding, mx_rounding);
}

ExpertsResult call_quantize_experts(const at::Tensor& w, std::string_view format,
                                    std::string_view granularity, std::string_view layout,
                                    std::string_view scale_rounding, std::string_view mx_rounding) {
  static const auto op =
      find_operator<decltype(call_quantize_experts)>("octavo::quantize_expert_weights");
  return op.call(w, format, granularity, layout, scale_rounding, mx_rounding);
}

GroupedResult quantize_grouped_kernel(const at::Tensor& x, const at::Tensor& offs,
                                      std::string_view format, std::string_view granularity,
                                      std::string_view layout, std::string_view scale_rounding,
                                      std::string_view mx_rounding) {
  const LayoutSpec spec = parse_layout_spec(format, granularity, scale_rounding, mx_rounding);
  if (parse_transposed("layout", layout)) {
    const GroupedOperand out = quantize_grouped_operand(x, offs, {.transposed = spec});
    return {out.transposed.data, out.transposed.scale, out.offs_transposed};
  }
  const GroupedOperand out = quantize_grouped_operand(x, offs, {.rows = spec});
  // An operator's output is none of its inputs.
  const at::Tensor ends = out.offs.is_same(offs) ? offs.clone() : out.offs;
  return {out.rows.data, out.rows.scale, ends};
}

GroupedResult quantize_grouped_meta(const at::Tensor& x, const at::Tensor& offs,
                                    std::string_view format, std::string_view granularity,
                                    std::string_view layout, std::string_view scale_rounding,
                                    std::string_view mx_rounding) {
  const LayoutSpec spec = parse_layout_spec(format, granularity, scale_rounding, mx_rounding);
  TORCH_CHECK(x.dim() == 2, "x: expected a matrix (M, K), got ", x.dim(), " dimensions");
  check_offsets_type("offs", offs);
  check_one_device("quantize_grouped", {x, offs});
  const c10::SymInt m = x.sym_size(0), k = x.sym_size(1), experts = offs.sym_size(0);
  const at::TensorOptions fp8 = x.options().dtype(scalar_type(spec.format));
  const at::Tensor ends = at::empty_symint({experts}, offs.options());
  if (!parse_transposed("layout", layout)) {
    return {at::empty_symint({m, k}, fp8), empty_scale_meta(x, spec.granularity, m, k), ends};
  }
  const c10::SymInt mt = grouped_columns(m, experts, spec.granularity);
  const at::Tensor scale = spec.granularity.block_columns == 0
                               ? at::empty_symint({experts, k}, x.options().dtype(at::kFloat))
                               : empty_scale_meta(x, spec.granularity, k, mt);
  return {at::empty_symint({k, mt}, fp8), scale, ends};
}

ExpertsResult quantize_experts_kernel(const at::Tensor& w, std::string_view format,
                                      std::string_view granularity, std::string_view layout,
                                      std::string_view scale_rounding,
                                      std::string_view mx_rounding) {
  const LayoutSpec spec = parse_layout_spec(format, granularity, scale_rounding, mx_rounding);
  const bool transposed = parse_transposed("layout", layout);
  const QuantizedOperand both = transposed ? quantize_expert_weights(w, {.transposed = spec})
                                           : quantize_expert_weights(w, {.rows = spec});
  const ScaledTensor& out = transposed ? both.transposed : both.rows;
  return {out.data, out.scale};
}

ExpertsResult quantize_experts_meta(const at::Tensor& w, std::string_view format,
                                    std::string_view granularity, std::string_view layout,
                                    std::string_view scale_rounding, std::string_view mx_rounding) {
  const LayoutSpec spec = parse_layout_spec(format, granularity, scale_rounding, mx_rounding);
  TORCH_CHECK(w.dim() == 3, "w: expected the experts' weights (E, N, K), got ", w.dim(),
              " dimensions");
  const bool transposed = parse_transposed("layout", layout);
  const c10::SymInt rows = w.sym_size(transposed ? 2 : 1), columns = w.sym_size(transposed ? 1 : 2);
  return {
      at::empty_symint({w.sym_size(0), rows, columns}, w.options().dtype(scalar_type(spec.format))),
      empty_expert_scale_meta(w, spec.granularity, w.sym_size(0), rows, columns)};
}

GroupedResult quantize_grouped_autograd(const at::Tensor& x, const at::Tensor& offs,
                                        std::string_view format, std::string_view granularity,
                                        std::string_view layout, std::string_view scale_rounding,
                                        std::string_view mx_rounding) {
  refuse_tangents("quantize_grouped", {x});
  GroupedResult result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result =
        call_quantize_grouped(x, offs, format, granularity, layout, scale_rounding, mx_rounding);
  }
  if (requires_derivative({x})) {
    std::get<0>(result) = without_derivative("quantize_grouped", std::get<0>(result));
    std::get<1>(result) = without_derivative("quantize_grouped", std::get<1>(result));
  }
  return result;
}

ExpertsResult quantize_experts_autograd(const at::Tensor& w, std::string_view format,
                                        std::string_view granularity, std::string_view layout,
                                        std::string_view scale_rounding,
                                        std::string_view mx_rounding) {
  refuse_tangents("quantize_expert_weights", {w});
  ExpertsResult result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = call_quantize_experts(w, format, granularity, layout, scale_rounding, mx_rounding);
  }
  if (requires_derivative({w})) {
    result = {without_derivative("quantize_expert_weights", std::get<0>(result)),
              without_derivative("quantize_expert_weights", std::get<1>(result))};
  }
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(octavo, CPU, m) {
  m.impl("quantize_grouped", &quantize_grouped_kernel);
  m.impl("quantize_expert_weights", &quantize_experts_kernel);
}
TORCH_LIBRARY_IMPL(octavo, CUDA, m) {
  m.impl("quantize_grouped", &quantize_grouped_kernel);
  m.impl("quantize_expert_weights", &quantize_experts_kernel);
}
TORCH_LIBRARY_IMPL(octavo, Meta, m) {
  m.impl("quantize_grouped", &quantize_grouped_meta);
  m.impl("quantize_expert_weights", &quantize_experts_meta);
}
TORCH_LIBRARY_IMPL(octavo, Autograd, m) {
  m.impl("quantize_grouped", &quantize_grouped_autograd);
  m.impl("quantize_expert_weights", &quantize_experts_autograd);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCPU, m) {
  m.impl("quantize_grouped", &below_autocast<&call_quantize_grouped>::call);
  m.impl("quantize_expert_weights", &below_autocast<&call_quantize_experts>::call);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCUDA, m) {
  m.impl("quantize_grouped", &below_autocast<&call_quantize_grouped>::call);
  m.impl("quantize_expert_weights", &below_autocast<&call_quantize_experts>::call);
}

}  // namespace octavo::ops
