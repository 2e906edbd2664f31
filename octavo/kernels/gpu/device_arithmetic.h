#pragma once

#include "octavo/kernels/gpu/platform.h"

namespace octavo::gpu {

/// kernels::HostArithmetic on the device: each operation rounded on its own.
struct DeviceArithmetic {
  OCTAVO_HOST_DEVICE static double multiply(double a, double b) { return multiply_rn(a, b); }
  OCTAVO_HOST_DEVICE static double subtract(double a, double b) { return subtract_rn(a, b); }
  OCTAVO_HOST_DEVICE static double divide(double a, double b) { return divide_rn(a, b); }
  OCTAVO_HOST_DEVICE static double square_root(double a) { return square_root_rn(a); }
};

/// divide_rn(x, d) and square_root_rn(v) without their branches for special cases, so that several
/// can overlap: the instructions that nvcc emits for both on Hopper where its own checks of the
/// operands pass. They do for 2^-100 <= |x| <= 2^60, 2^-60 <= d <= 2^23 and 2^-101 <= v <= 2^20;
/// for x and v of zero the result is right too (the sign of a zero x is lost).
#if OCTAVO_GPU_HIP
OCTAVO_DEVICE float divide_normal(float x, float d) { return divide_rn(x, d); }
OCTAVO_DEVICE float square_root_normal(float v) { return square_root_rn(v); }
#else
OCTAVO_DEVICE float divide_normal(float x, float d) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
  r = __fmaf_rn(__fmaf_rn(-d, r, 1.0f), r, r);
  const float q = __fmul_rn(x, r);
  return __fmaf_rn(__fmaf_rn(-d, q, x), r, q);
}
OCTAVO_DEVICE float square_root_normal(float v) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  const float s = __fmul_rn(v, r);
  const float root = __fmaf_rn(__fmaf_rn(-s, s, v), __fmul_rn(0.5f, r), s);
  return v == 0.0f ? 0.0f : root;
}
#endif

}  // namespace octavo::gpu
