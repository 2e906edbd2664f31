#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "octavo/quantize/scaled_tensor.h"

/// Operands in the sizes a backend's alignment asks for. Copies only where the sizes do not fit.
namespace octavo {

/// n rounded up to a multiple of `alignment`.
constexpr std::int64_t round_up(std::int64_t n, std::int64_t alignment) {
  return (n + alignment - 1) / alignment * alignment;
}

/// FP8 bytes as a (rows, columns) matrix whose rows begin at multiples of 16 bytes, zero where
/// `data` has none: byte 0 is zero in every format. `data` itself where it is that already.
at::Tensor padded_data(const at::Tensor& data, std::int64_t rows, std::int64_t columns);

/// Row scales (rows, 1) of a matrix padded to `rows` rows: a tensor scale repeated, row scales
/// followed by zeros. `matrix.scale` itself where it is that already.
at::Tensor row_scales(const ScaledTensor& matrix, std::int64_t rows);

}  // namespace octavo
