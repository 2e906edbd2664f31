#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "octavo/formats/format.h"
#include "octavo/quantize/granularity.h"

namespace octavo {

/// An FP8 matrix with its scales: value = data * scale, each scale spread over its block. Experts'
/// weights are E of them, in one tensor of three dimensions each; expert() is one of them.
struct ScaledTensor {
  at::Tensor data;  ///< (R, C) or (E, R, C), FP8 dtype, row-major, K-contiguous
  /// (granularity.scale_rows(R), granularity.scale_columns(C)), or E of those; fp32 or e8m0
  at::Tensor scale;
  Granularity granularity;
  ScaleLayout scale_layout = ScaleLayout::kPlain;
  /// The sizes the matrix stands for; data may be larger (zero-padded to a backend's alignment).
  std::vector<std::int64_t> logical_sizes;

  bool defined() const { return data.defined(); }
  std::int64_t rows() const { return logical_sizes[logical_sizes.size() - 2]; }
  std::int64_t columns() const { return logical_sizes.back(); }
  Format format() const;  ///< from data's dtype
};

/// One operand's two layouts; either may be absent (`defined()` false).
struct QuantizedOperand {
  ScaledTensor rows;        ///< (M, K)
  ScaledTensor transposed;  ///< (K, M)
};

/// The matrix of expert `e` of weights (E, R, C): a view.
ScaledTensor expert(const ScaledTensor& weights, std::int64_t e);

/// torch dtype of `format`, and back. An error names the dtype when it is no FP8 type.
at::ScalarType scalar_type(Format format);
Format format_of(at::ScalarType dtype);

/// The matrix in fp32: data * scale for every element, computed in fp32 (exact where the product
/// is). Cut to logical_sizes; (E, R, C) for experts' weights. For tests, emulation and inspection.
at::Tensor dequantize(const ScaledTensor& matrix);

}  // namespace octavo
