#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/quantize/granularity.h"

namespace octavo {

/// Largest magnitudes of a matrix (M, K), fp32 and contiguous on its device; undefined: not known,
/// or not wanted.
struct Amaxes {
  at::Tensor tensor = {};   ///< (1)
  at::Tensor rows = {};     ///< (M)
  at::Tensor columns = {};  ///< (K)
};

/// The largest magnitudes of x (M, K) in one read, fp32: for each of `granularities` (tensorwise,
/// rowwise, colwise, each once at most) 1, M or K numbers, one after the other in one tensor.
///
/// x: fp32, bf16 or fp16, any strides. NaN where a NaN is, Inf where an Inf is and no NaN; 0 where
/// there is nothing. Exact, so that scales which follow from it are those of quantize_operand(x).
/// Errors: x no such matrix, no granularity, one twice or another one.
at::Tensor find_amaxes(const at::Tensor& x, at::ArrayRef<Granularity> granularities);

}  // namespace octavo
