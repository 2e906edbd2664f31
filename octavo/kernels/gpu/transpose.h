#pragma once

#include <cstdint>

#include "octavo/kernels/gpu/types.h"

namespace octavo::gpu {

/// Transposes a matrix (R, C) of bytes: to[c, r] = from[r, c].
///
/// C, R and row_stride multiples of 16 and 16-byte aligned pointers take the fast path: 16 x 16
/// bytes a thread, transposed in registers. Nothing else is as fast. Empty: nothing to do.
struct TransposeArgs {
  const std::uint8_t* from = nullptr;  ///< (R, C), columns contiguous
  std::uint8_t* to = nullptr;          ///< (C, R), row-major; not the same memory
  std::int64_t rows = 0;               ///< R
  std::int64_t columns = 0;            ///< C
  std::int64_t row_stride = 0;         ///< bytes from a row to the next
};

void transpose_bytes(const TransposeArgs& args, Stream stream);

}  // namespace octavo::gpu
