#pragma once

#include <cstdint>

#include "octavo/formats/scaling.h"

/// What every GPU kernel's launcher speaks: raw pointers, sizes, strides, a stream. No framework.
namespace octavo::gpu {

/// A cudaStream_t or hipStream_t.
using Stream = void*;

/// Element type of a high-precision operand.
enum class DType : std::uint8_t { kBF16, kFP16, kFP32 };

constexpr int bytes_of(DType dtype) { return dtype == DType::kFP32 ? 4 : 2; }

/// A high-precision operand x (M, K) on the device, any strides (in elements; 0 and negative ones
/// too). Contiguous columns, 16-byte aligned rows and M a multiple of 16 take the fast path; all
/// else gives the same bytes more slowly.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  std::int64_t rows = 0;     ///< M
  std::int64_t columns = 0;  ///< K
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 1;
};

}  // namespace octavo::gpu
