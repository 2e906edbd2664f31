#pragma once

#include "octavo/kernels/gpu/groups.h"
#include "octavo/kernels/gpu/types.h"

namespace octavo::gpu {

/// Largest magnitudes of x (M, K), in one read of x. NaN wins every maximum.
///
/// Each result is fp32 and may be absent (null): tensor[0] over all of x, row[m] over row m,
/// column[k] over column k. Results are combined into what the buffers hold, so they must be zero
/// (or an earlier amax to extend); zero_amax() clears them. Empty x leaves them alone: amax 0.
/// Exact for every input type.
///
/// Groups (groups.h): tensor and column are results of each group: (groups), (groups, K). With
/// offsets rows of no group are not read, and their results left alone.
struct AmaxArgs {
  Matrix x = {};
  float* tensor = nullptr;  ///< (1)
  float* row = nullptr;     ///< (M)
  float* column = nullptr;  ///< (K)
  Groups groups = {};
};

void amax(const AmaxArgs& args, Stream stream);

/// Where a kernel that writes a matrix (M, K) adds its largest magnitudes, as amax() does; null:
/// not wanted.
struct WrittenAmax {
  float* tensor = nullptr;  ///< (1)
  float* row = nullptr;     ///< (M)
  float* column = nullptr;  ///< (K)

  explicit operator bool() const { return tensor || row || column; }
};

/// Zeros `count` floats.
void zero_amax(float* buffer, std::int64_t count, Stream stream);

}  // namespace octavo::gpu
