#pragma once

#include "octavo/kernels/gpu/packed.h"

/// Single elements of a high-precision type in memory, as fp32. Eight at a time: Vec8 and store8().
namespace octavo::gpu {

/// Element i of `address`.
template <DType T>
OCTAVO_DEVICE float load_value(const void* address, std::int64_t i) {
  if constexpr (T == DType::kFP32) return static_cast<const float*>(address)[i];
  return Packed<T>::to_float(static_cast<const std::uint16_t*>(address)[i]);
}

/// `value`, rounded once to T, to element i of `address`.
template <DType T>
OCTAVO_DEVICE void store_value(void* address, std::int64_t i, float value) {
  if constexpr (T == DType::kFP32) {
    static_cast<float*>(address)[i] = value;
  } else {
    static_cast<std::uint16_t*>(address)[i] = static_cast<std::uint16_t>(
        T == DType::kBF16 ? to_bf16x2(value, 0.0f) : to_fp16x2(value, 0.0f));
  }
}

}  // namespace octavo::gpu
