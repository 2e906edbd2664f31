#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

// What linear_cross_entropy.cpp asks of a GPU besides the dispatcher's operator.
namespace octavo::ops {

struct LinearCrossEntropyArgs {
  at::Tensor x;        ///< (..., K)
  at::Tensor w;        ///< (V, K)
  at::Tensor targets;  ///< (...) int64
  std::int64_t chunk_bytes = 0;
  double gradient = 1.0;  ///< of the loss: dx and dw are made with it
  bool need_dx = false;
  at::Tensor dw = {};       ///< as w; undefined: not wanted
  bool adds_to_dw = false;  ///< instead of overwriting it
};

/// loss (scalar, fp32) and dx (of x's sizes; empty where not wanted). Errors: another dtype than
/// fp32, bf16 and fp16.
std::tuple<at::Tensor, at::Tensor> linear_cross_entropy_cuda(const LinearCrossEntropyArgs& args);

}  // namespace octavo::ops
