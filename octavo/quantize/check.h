#pragma once

#include <string_view>

#include "octavo/quantize/scaled_tensor.h"

namespace octavo {

/// Throws unless `matrix` is what its fields say; `argument` names it in the message ("a").
///
/// Expected: logical_sizes (R, C); data 2-D, FP8, at least (R, C), columns contiguous; scale of
/// sizes (granularity.scale_rows(R), granularity.scale_columns(C)), dtype float8_e8m0fnu where
/// granularity.mx and fp32 otherwise, with the strides scale_layout names, on data's device; no
/// MX with a FNUZ format.
void check_scaled_tensor(const ScaledTensor& matrix, std::string_view argument);

/// Throws unless `weights` is (E, R, C) and every expert's part is what check_scaled_tensor() asks
/// for.
void check_expert_weights(const ScaledTensor& weights, std::string_view argument);

}  // namespace octavo
