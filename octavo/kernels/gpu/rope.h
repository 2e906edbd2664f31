#pragma once

#include "octavo/kernels/gpu/types.h"

namespace octavo::gpu {

/// Rotary position embedding, half-split: feature i is paired with feature i + P/2,
///
///   y[i]       = x[i] cos[i] + x[i + P/2] sin[i]
///   y[i + P/2] = x[i + P/2] cos[i + P/2] + x[i] sin[i + P/2]
///
/// in fp32, rounded once; `inverse` takes the sines with the other sign (the backward pass). Up
/// to two tensors, queries and keys, in one launch.
struct RopeTensor {
  const void* x = nullptr;  ///< (B, T, H, P), contiguous, 16-byte aligned
  void* y = nullptr;        ///< like x
  std::int64_t heads = 0;   ///< H; 0: no such tensor
};
struct RopeArgs {
  RopeTensor tensors[2];
  DType dtype = DType::kBF16;
  std::int64_t batch = 0, sequence = 0;
  std::int64_t features = 0;      ///< P, a multiple of 16
  const float* cosine = nullptr;  ///< (T, P)
  const float* sine = nullptr;    ///< (T, P), negative in the first half
  bool inverse = false;
};

void rope(const RopeArgs& args, Stream stream);

}  // namespace octavo::gpu
