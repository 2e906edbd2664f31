#pragma once

#include <cmath>

namespace octavo::kernels {

/// Double arithmetic without contraction, for formulas whose bits are the same on CPU and GPU.
/// Device code has its own (kernels/gpu/device_arithmetic.h), because its compilers fuse a * b + c
/// unless told otherwise operation by operation.
struct HostArithmetic {
  static double multiply(double a, double b) { return a * b; }
  static double subtract(double a, double b) { return a - b; }
  static double divide(double a, double b) { return a / b; }
  static double square_root(double a) { return std::sqrt(a); }
};

}  // namespace octavo::kernels
