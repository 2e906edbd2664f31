#pragma once

#include "octavo/kernels/gpu/platform.h"
#include "octavo/kernels/gpu/types.h"

/// Host-side helpers of the launchers.
namespace octavo::gpu {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Multiprocessors (compute units) of the current device, asked once per device.
int multiprocessors();

/// Whether the current device converts fp32 to `format` by an instruction.
bool has_cast_instruction(Format format);

/// True when rows of eight elements can be read as aligned 16-byte vectors.
inline bool is_vector_readable(const Matrix& x) {
  const std::int64_t element = bytes_of(x.dtype);
  return x.column_stride == 1 && x.columns % 8 == 0 && x.row_stride * element % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
}

void zero_async(void* buffer, std::size_t bytes, Stream stream);

}  // namespace octavo::gpu
