#include "octavo/ops/operands.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <vector>

#include "octavo/gemm/high_precision_mm.h"
#include "octavo/ops/scale_layout.h"

namespace octavo::ops {
namespace {

// The rows of an operand that is quantised already, of `matrix` (R, C).
ScaledTensor given_rows(const char* argument, const char* scale_name, const at::Tensor& matrix,
                        const at::Tensor& bytes, const at::Tensor& scale, const LayoutSpec& spec) {
  TORCH_CHECK(bytes.sizes() == matrix.sizes() && bytes.is_contiguous(), argument,
              ": expected a contiguous ", matrix.sizes(), " as the operand's sizes ask for, got ",
              bytes.sizes(), " with strides ", bytes.strides(),
              "; pass what was quantised from the same tensor");
  const at::ScalarType dtype = spec.granularity.mx ? at::kByte : at::kFloat;
  TORCH_CHECK(scale.scalar_type() == dtype, scale_name, ": expected ", dtype, ", got ",
              scale.scalar_type(), "; quantise the operand by the same recipe");
  return from_bytes(scale_name, bytes, scale, spec);
}

}  // namespace

at::Tensor as_matrix(const at::Tensor& x) {
  if (x.dim() == 2) return x;
  std::int64_t rows = 1;
  for (std::int64_t i = 0; i + 1 < x.dim(); ++i) rows *= x.size(i);
  return x.reshape({rows, x.size(-1)});  // not -1, which is ambiguous for empty x
}

at::Tensor with_leading_sizes_of(const at::Tensor& matrix, const at::Tensor& like) {
  if (like.dim() == 2) return matrix;
  std::vector<std::int64_t> sizes = like.sizes().vec();
  sizes.back() = matrix.size(1);
  return matrix.view(sizes);
}

QuantizedOperand operand_of(const char* argument, const char* scale_name, const at::Tensor& matrix,
                            const std::optional<at::Tensor>& rows,
                            const std::optional<at::Tensor>& rows_scale, const LayoutSpec& spec,
                            const std::optional<LayoutSpec>& transposed, const at::Tensor& amax) {
  if (!rows) {
    return quantize_operand(matrix, {.rows = spec,
                                     .transposed = transposed,
                                     .together = Together::kRows,
                                     .amax = {.tensor = amax}});
  }
  QuantizedOperand operand;
  if (transposed)
    operand = quantize_operand(matrix, {.transposed = transposed, .amax = {.tensor = amax}});
  operand.rows = given_rows(argument, scale_name, matrix, *rows, *rows_scale, spec);
  return operand;
}

at::Tensor high_precision_dw(const at::Tensor& dy, const at::Tensor& x, at::ScalarType dtype,
                             const std::optional<at::Tensor>& into) {
  const at::Tensor x_MK = as_matrix(x);
  if (into && dy.is_cuda() && dy.scalar_type() == dtype) {
    return high_precision_mm(dy.t(), x_MK.t(), {.into = *into, .adds = true});
  }
  at::Tensor dw = high_precision_mm(dy.t(), x_MK.t());
  if (dw.scalar_type() != dtype) dw = dw.to(dtype);
  return into ? into->add_(dw) : dw;
}

QuantizedLayouts layouts_of(const QuantizedOperand& operand) {
  QuantizedLayouts layouts{.rows = to_bytes(operand.rows.data),
                           .rows_scale = scale_bytes(operand.rows),
                           .transposed = {},
                           .transposed_scale = {}};
  if (operand.transposed.data.defined()) {
    layouts.transposed = to_bytes(operand.transposed.data);
    layouts.transposed_scale = scale_bytes(operand.transposed);
  }
  return layouts;
}

}  // namespace octavo::ops
