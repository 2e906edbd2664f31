// octavo::quantize: one layout of a matrix, for use from Python.
#include "octavo/quantize/quantize.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "octavo/ops/below.h"
#include "octavo/ops/find_operator.h"
#include "octavo/ops/meta.h"
#include "octavo/ops/names.h"

namespace octavo::ops {
namespace {

using Result = std::tuple<at::Tensor, at::Tensor>;

Result call_quantize(const at::Tensor& x, std::string_view format, std::string_view granularity,
                     std::string_view layout, std::string_view scale_rounding,
                     std::string_view mx_rounding) {
  static const auto op = find_operator<decltype(call_quantize)>("octavo::quantize");
  return op.call(x, format, granularity, layout, scale_rounding, mx_rounding);
}

Result quantize_kernel(const at::Tensor& x, std::string_view format, std::string_view granularity,
                       std::string_view layout, std::string_view scale_rounding,
                       std::string_view mx_rounding) {
  const LayoutSpec spec = parse_layout_spec(format, granularity, scale_rounding, mx_rounding);
  if (parse_transposed("layout", layout)) {
    const ScaledTensor out = quantize_operand(x, {.transposed = spec}).transposed;
    return {out.data, out.scale};
  }
  const ScaledTensor out = quantize_operand(x, {.rows = spec}).rows;
  return {out.data, out.scale};
}

Result quantize_meta(const at::Tensor& x, std::string_view format, std::string_view granularity,
                     std::string_view layout, std::string_view scale_rounding,
                     std::string_view mx_rounding) {
  const LayoutSpec spec = parse_layout_spec(format, granularity, scale_rounding, mx_rounding);
  TORCH_CHECK(x.dim() == 2, "x: expected a matrix (M, K), got ", x.dim(), " dimensions");
  const bool transposed = parse_transposed("layout", layout);
  const c10::SymInt rows = x.sym_size(transposed ? 1 : 0), columns = x.sym_size(transposed ? 0 : 1);
  return {at::empty_symint({rows, columns}, x.options().dtype(scalar_type(spec.format))),
          empty_scale_meta(x, spec.granularity, rows, columns)};
}

Result quantize_autograd(const at::Tensor& x, std::string_view format, std::string_view granularity,
                         std::string_view layout, std::string_view scale_rounding,
                         std::string_view mx_rounding) {
  refuse_tangents("quantize", {x});
  Result result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = call_quantize(x, format, granularity, layout, scale_rounding, mx_rounding);
  }
  if (requires_derivative({x})) {
    result = {without_derivative("quantize", std::get<0>(result)),
              without_derivative("quantize", std::get<1>(result))};
  }
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(octavo, CPU, m) { m.impl("quantize", &quantize_kernel); }
TORCH_LIBRARY_IMPL(octavo, CUDA, m) { m.impl("quantize", &quantize_kernel); }
TORCH_LIBRARY_IMPL(octavo, Meta, m) { m.impl("quantize", &quantize_meta); }
TORCH_LIBRARY_IMPL(octavo, Autograd, m) { m.impl("quantize", &quantize_autograd); }
TORCH_LIBRARY_IMPL(octavo, AutocastCPU, m) {
  m.impl("quantize", &below_autocast<&call_quantize>::call);
}
TORCH_LIBRARY_IMPL(octavo, AutocastCUDA, m) {
  m.impl("quantize", &below_autocast<&call_quantize>::call);
}

}  // namespace octavo::ops
