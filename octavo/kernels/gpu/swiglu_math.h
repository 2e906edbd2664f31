#pragma once

#include "octavo/kernels/gpu/platform.h"
#include "octavo/kernels/gpu/types.h"

/// SwiGLU of one element. Every operation is rounded by itself, so that all kernels that compute it
/// get the same bits.
namespace octavo::gpu {

/// s = 1 / (1 + exp(-gate)) and silu = gate * s. For 16-bit types by the hardware's approximations
/// of 2^x and 1/x, whose error of a few units of fp32 is far below their own rounding: with exact
/// ones the kernels compute for longer than they read.
template <DType T>
struct Sigmoid {
  float s, silu;

  OCTAVO_DEVICE explicit Sigmoid(float gate) {
    if constexpr (T == DType::kFP32) {
      const float denominator = add_rn(1.0f, expf(-gate));
      s = divide_rn(1.0f, denominator);
      silu = divide_rn(gate, denominator);
    } else {
      constexpr float kLog2E = 1.44269504088896340736f;
      s = reciprocal_fast(add_rn(1.0f, exp2_fast(multiply_rn(gate, -kLog2E))));
      silu = multiply_rn(gate, s);
    }
  }
};

template <DType T>
OCTAVO_DEVICE float swiglu_of(float gate, float up) {
  return multiply_rn(Sigmoid<T>(gate).silu, up);
}

template <DType T>
OCTAVO_DEVICE float swiglu_dup(float dh, float gate) {
  return multiply_rn(dh, Sigmoid<T>(gate).silu);
}

template <DType T>
OCTAVO_DEVICE float swiglu_dgate(float dh, float gate, float up) {
  const float s = Sigmoid<T>(gate).s;
  return multiply_rn(multiply_rn(multiply_rn(dh, up), s), fma_rn(gate, add_rn(1.0f, -s), 1.0f));
}

}  // namespace octavo::gpu
