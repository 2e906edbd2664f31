#pragma once

#include "octavo/kernels/adamw.h"
#include "octavo/kernels/gpu/types.h"

namespace octavo::gpu {

/// AdamW's step for many tensors of one AdamwTypes, the formula of kernels/adamw.h with bits equal
/// to the CPU's. `lr` (fp64) and `clip` (fp32) are one number each on the device, read by the
/// kernel: a captured graph or a queue of steps follows what they hold when it runs.
///
/// A tensor's amax, where it is not nullptr, becomes the largest of what it held (zero, to begin
/// with) and the magnitudes of the parameter as it is in memory after the step, NaN above all: as
/// amax() of it. Where a clip of NaN takes no step, that is the parameter as it was.
///
/// The table of tensors travels as the kernel's argument, kAdamwTensorsPerLaunch a launch; tensors
/// without elements and an empty table launch nothing. 16-byte aligned tensors take the fast path,
/// others give the same bits more slowly.
struct AdamwArgs {
  const kernels::AdamwTensor* tensors =
      nullptr;  ///< on the host; what they point to, on the device
  std::int64_t count = 0;
  kernels::AdamwTypes types = {};
  kernels::AdamwOptions options = {};
  const double* lr = nullptr;
  const float* clip = nullptr;
};

inline constexpr int kAdamwTensorsPerLaunch = 52;  ///< 4 KiB of arguments is what HIP takes

void adamw(const AdamwArgs& args, Stream stream);

}  // namespace octavo::gpu
