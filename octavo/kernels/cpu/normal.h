#pragma once

#include <cstdint>

#include "octavo/kernels/matrix.h"
#include "octavo/kernels/normal.h"

namespace octavo::kernels {

/// Elements [begin, end) of a tensor from `source` (kernels/normal.h), rounded to `type`, fp32 or
/// bf16. begin == end: nothing. The same bits however a tensor is split. Does not throw.
void fill_normal(const NormalSource& source, HighPrecision type, void* data, std::int64_t begin,
                 std::int64_t end);

}  // namespace octavo::kernels
