#pragma once

#include <cstdint>

#include "octavo/kernels/gpu/types.h"

namespace octavo::gpu {

/// One gradient: `size` contiguous elements on the device.
struct GradientTensor {
  const void* data = nullptr;
  std::int64_t size = 0;
  DType dtype = DType::kBF16;
};

/// The Euclidean norm of many tensors as of one vector, each element read once:
///
///   norm = fp32(sqrt(sum over all tensors of g^2))
///
/// Squares are added in fp32 16 at a time, and in fp64 from there on, in an order that sizes alone
/// decide: the same bits on every GPU and for every alignment, and a relative error below
/// 10 * 2^-24. As in LibTorch's fp32 norms a NaN gives NaN, an Inf gives Inf, a |g| of 2^64 does
/// too (sixteen of 2^62 together), and squares below 2^-150 count as zero. Empty tensors count
/// nothing; no tensors: 0.
///
/// Tensors begin at a multiple of their element's size; 16-byte aligned ones are read faster.
/// The table travels as the kernel's argument, kGradientsPerLaunch a launch, and one launch more
/// adds up what they found: a captured graph reads the same memory again.
struct GradientNormArgs {
  const GradientTensor* tensors = nullptr;  ///< on the host
  std::int64_t count = 0;
  double* partial = nullptr;  ///< gradient_norm_partials() of them, any content
  float* norm = nullptr;      ///< (1)
};

inline constexpr int kGradientsPerLaunch = 192;  ///< 4 KiB of arguments is what HIP takes

/// fp64 numbers of scratch memory for these tensors: one for every 32768 elements of each.
std::int64_t gradient_norm_partials(const GradientTensor* tensors, std::int64_t count);

void gradient_norm(const GradientNormArgs& args, Stream stream);

}  // namespace octavo::gpu
