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
                     std::string_view mx_rounding, const std::optional<at::Tensor>& amax) {
  static const auto op = find_operator<decltype(call_quantize)>("octavo::quantize");
  return op.call(x, format, granularity, layout, scale_rounding, mx_rounding, amax);
}

void check_matrix(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 2, "x: expected a matrix (M, K), got ", x.dim(),
              " dimensions; flatten the leading ones with x.flatten(0, -2)");
}

// The amaxes that a layout's scales follow from.
Amaxes given_amax(const at::Tensor& x, const LayoutSpec& spec, bool transposed,
                  const std::optional<at::Tensor>& amax) {
  if (!amax) return {};
  check_one_device("quantize", {x, *amax});
  const Granularity& granularity = spec.granularity;
  const bool tensorwise = granularity == Granularity::tensorwise();
  TORCH_CHECK(
      tensorwise || granularity == Granularity::rowwise() || granularity == Granularity::colwise(),
      "amax: expected the granularity tensorwise, rowwise or colwise beside it, got ",
      to_string(granularity), "; leave it out, one read finds a block's amax");
  const bool by_rows = (granularity == Granularity::rowwise()) != transposed;
  const std::int64_t count = tensorwise ? 1 : x.size(by_rows ? 0 : 1);
  TORCH_CHECK(amax->numel() == count && amax->scalar_type() == at::kFloat, "amax: expected ", count,
              " float32 numbers, one a scale, got ", amax->scalar_type(), " ", amax->sizes(),
              "; pass what octavo::amax gave for ",
              tensorwise ? "tensorwise"
              : by_rows  ? "rowwise"
                         : "colwise");
  const at::Tensor flat = amax->contiguous();
  if (tensorwise) return {.tensor = flat};
  if (by_rows) return {.rows = flat};
  return {.columns = flat};
}

Result quantize_kernel(const at::Tensor& x, std::string_view format, std::string_view granularity,
                       std::string_view layout, std::string_view scale_rounding,
                       std::string_view mx_rounding, const std::optional<at::Tensor>& amax) {
  const LayoutSpec spec = parse_layout_spec(format, granularity, scale_rounding, mx_rounding);
  const bool transposed = parse_transposed("layout", layout);
  check_matrix(x);
  OperandSpec operand{.amax = given_amax(x, spec, transposed, amax)};
  (transposed ? operand.transposed : operand.rows) = spec;
  const QuantizedOperand both = quantize_operand(x, operand);
  const ScaledTensor& out = transposed ? both.transposed : both.rows;
  return {out.data, out.scale};
}

Result quantize_meta(const at::Tensor& x, std::string_view format, std::string_view granularity,
                     std::string_view layout, std::string_view scale_rounding,
                     std::string_view mx_rounding, const std::optional<at::Tensor>& amax) {
  if (amax) check_one_device("quantize", {x, *amax});
  const LayoutSpec spec = parse_layout_spec(format, granularity, scale_rounding, mx_rounding);
  check_matrix(x);
  const bool transposed = parse_transposed("layout", layout);
  const c10::SymInt rows = x.sym_size(transposed ? 1 : 0), columns = x.sym_size(transposed ? 0 : 1);
  return {at::empty_symint({rows, columns}, x.options().dtype(scalar_type(spec.format))),
          empty_scale_meta(x, spec.granularity, rows, columns)};
}

Result quantize_autograd(const at::Tensor& x, std::string_view format, std::string_view granularity,
                         std::string_view layout, std::string_view scale_rounding,
                         std::string_view mx_rounding, const std::optional<at::Tensor>& amax) {
  refuse_tangents("quantize", {x, amax.value_or(at::Tensor())});
  Result result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = call_quantize(x, format, granularity, layout, scale_rounding, mx_rounding, amax);
  }
  if (requires_derivative({x, amax.value_or(at::Tensor())})) {
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
