#pragma once

#include <cstdint>

#include "octavo/kernels/gpu/platform.h"

/// One launch over many tensors: a table of them in the kernel's argument, and blocks in turn.
namespace octavo::gpu {

/// The tensor whose blocks hold blockIdx.x: first_block[i] is the first of tensor i, ascending;
/// `count` tensors, at least one.
OCTAVO_DEVICE int tensor_of_block(const std::uint32_t* first_block, int count) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first_block[middle] <= blockIdx.x ? low : high) = middle;
  }
  return low;
}

}  // namespace octavo::gpu
