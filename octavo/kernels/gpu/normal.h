#pragma once

#include <cstdint>

#include "octavo/kernels/gpu/types.h"
#include "octavo/kernels/normal.h"

namespace octavo::gpu {

/// `size` elements of a tensor on the device from `source` (kernels/normal.h), rounded to `dtype`,
/// fp32 or bf16: the bits of kernels::fill_normal(). size 0 launches nothing.
void fill_normal(const kernels::NormalSource& source, DType dtype, void* data, std::int64_t size,
                 Stream stream);

}  // namespace octavo::gpu
