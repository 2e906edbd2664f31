#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/quantize/granularity.h"

namespace octavo::ops {

/// The dtype e8m0 scales cross the dispatcher with.
enum class E8m0As { kFloat8, kByte };

/// An empty tensor of the sizes, strides and dtype quantize_operand gives the scales of an (R, C)
/// matrix, from symbolic sizes, on the device of `like`.
at::Tensor empty_scale_meta(const at::Tensor& like, const Granularity& granularity,
                            const c10::SymInt& rows, const c10::SymInt& columns, E8m0As e8m0_as);

}  // namespace octavo::ops
