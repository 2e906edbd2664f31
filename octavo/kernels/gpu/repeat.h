#pragma once

#include <cstdint>

#include "octavo/kernels/gpu/types.h"

namespace octavo::gpu {

/// out[i] = *value for i < count: a whole tensor's scale where a product reads one for every row.
/// Nothing where count is 0.
void repeat(const float* value, float* out, std::int64_t count, Stream stream);

}  // namespace octavo::gpu
