#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/quantize/granularity.h"

namespace octavo::ops {

/// The rows of x (..., K) seen as a matrix.
c10::SymInt leading_size(const at::Tensor& x);

/// An empty tensor like x (..., K) of (..., columns).
at::Tensor empty_like_with_columns(const at::Tensor& x, const c10::SymInt& columns);

/// An empty tensor of the sizes, strides and dtype quantize_operand gives the scales of an (R, C)
/// matrix, from symbolic sizes, on the device of `like`.
at::Tensor empty_scale_meta(const at::Tensor& like, const Granularity& granularity,
                            const c10::SymInt& rows, const c10::SymInt& columns);

/// The same for experts' weights (E, R, C): what quantize_expert_weights() gives.
at::Tensor empty_expert_scale_meta(const at::Tensor& like, const Granularity& granularity,
                                   const c10::SymInt& experts, const c10::SymInt& rows,
                                   const c10::SymInt& columns);

/// What flatten_scale() makes of a matrix' scales, e8m0 as uint8.
at::Tensor empty_flat_scale_meta(const at::Tensor& like, const Granularity& granularity,
                                 const c10::SymInt& rows, const c10::SymInt& columns);

/// The same for experts' weights (E, R, C), and for the transposed layout (K, Mt) of activations by
/// groups.
at::Tensor empty_flat_expert_scale_meta(const at::Tensor& like, const Granularity& granularity,
                                        const c10::SymInt& experts, const c10::SymInt& rows,
                                        const c10::SymInt& columns);
at::Tensor empty_flat_grouped_scale_meta(const at::Tensor& like, const Granularity& granularity,
                                         const c10::SymInt& experts, const c10::SymInt& rows,
                                         const c10::SymInt& columns);

/// What an operator returns for an output nobody asked for: (0) on the device of `like`.
at::Tensor nothing(const at::Tensor& like, at::ScalarType dtype);

}  // namespace octavo::ops
