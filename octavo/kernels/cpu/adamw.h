#pragma once

#include <cstdint>

#include "octavo/kernels/adamw.h"

namespace octavo::kernels {

/// AdamW's step for elements [begin, end) of one tensor, the formula of kernels/adamw.h. `factors`
/// are adamw_factors<HostArithmetic>() of the step. begin == end: nothing. Does not throw,
/// allocates nothing; the same bits on every instruction set and however a tensor is split.
void adamw(const AdamwTensor& tensor, const AdamwTypes& types, const AdamwFactors& factors,
           std::int64_t begin, std::int64_t end);

}  // namespace octavo::kernels
