#pragma once

#include "octavo/kernels/gpu/types.h"

namespace octavo::gpu {

/// The cross-entropy of each row of logits and, in place of the logits, its gradient:
///
///   loss[m]     = log(sum over v of exp(logits[m,v])) - logits[m, target[m]]      nats, fp32
///   logits[m,v] = (softmax(logits[m,:])[v] - (v == target[m])) * gradient_scale   rounded once
///
/// in fp32, by two reads of the logits (the second in part from the L2 cache) and one write. A NaN
/// or +Inf makes its own loss NaN. A target outside [0, V) gives a NaN loss and a NaN gradient row:
/// a device cannot throw, and training stops at the NaN.
struct CrossEntropyArgs {
  void* logits = nullptr;  ///< (M, V), contiguous rows
  DType dtype = DType::kBF16;
  const std::int64_t* target = nullptr;  ///< (M)
  std::int64_t rows = 0;
  std::int64_t columns = 0;  ///< V, at least 1
  float gradient_scale = 0;  ///< of the gradient
  bool writes_gradient = true;
  float* loss = nullptr;  ///< (M)
};

void cross_entropy(const CrossEntropyArgs& args, Stream stream);

}  // namespace octavo::gpu
