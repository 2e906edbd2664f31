#pragma once

#include "octavo/kernels/gpu/packed.h"

/// RMSNorm of one element. Every operation is rounded by itself, so that all kernels that compute
/// it get the same bits.
namespace octavo::gpu {

OCTAVO_DEVICE float rms_norm_of(float h, float rstd, float w) {
  return multiply_rn(multiply_rn(h, rstd), w);
}

template <DType T>
OCTAVO_DEVICE void load_as_floats(float (&v)[8], const void* base, std::int64_t column) {
  Vec8<T> words;
  words.load(static_cast<const char*>(base) + column * (Packed<T>::kHalfWords ? 2 : 4));
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = words[i];
}

/// Eight weights, of a type of their own.
OCTAVO_DEVICE void load_weights(float (&v)[8], const void* w, DType dtype, std::int64_t column) {
  if (dtype == DType::kFP32) return load_as_floats<DType::kFP32>(v, w, column);
  if (dtype == DType::kBF16) return load_as_floats<DType::kBF16>(v, w, column);
  load_as_floats<DType::kFP16>(v, w, column);
}

}  // namespace octavo::gpu
