#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "octavo/ops/float8_linear.h"
#include "octavo/quantize/quantize.h"

/// What the operators of dense layers do alike with their operands.
namespace octavo::ops {

/// (..., C) as a matrix (R, C): itself, or a view where one exists.
at::Tensor as_matrix(const at::Tensor& x);

/// A matrix (R, columns) in the leading sizes of `like`.
at::Tensor with_leading_sizes_of(const at::Tensor& matrix, const at::Tensor& like);

/// Rows of `matrix`, unless they are given (bytes and flat scales, named by `argument` and
/// `scale_name` in errors), and its transposed layout where `transposed` asks for it. amax: that of
/// `matrix` where it is known (OperandSpec).
QuantizedOperand operand_of(const char* argument, const char* scale_name, const at::Tensor& matrix,
                            const std::optional<at::Tensor>& rows,
                            const std::optional<at::Tensor>& rows_scale, const LayoutSpec& spec,
                            const std::optional<LayoutSpec>& transposed,
                            const at::Tensor& amax = {});

/// dw = dy^T . x, (N, M) . (M, K), in dy's dtype, rounded once more to `dtype`; x: (..., K). With
/// `into` it is added to that and is that tensor: inside the product on a GPU, where the dtypes
/// agree; elsewhere afterwards, with the bits of autograd's sum.
at::Tensor high_precision_dw(const at::Tensor& dy, const at::Tensor& x, at::ScalarType dtype,
                             const std::optional<at::Tensor>& into);

/// Both layouts as they cross the dispatcher.
QuantizedLayouts layouts_of(const QuantizedOperand& operand);

}  // namespace octavo::ops
