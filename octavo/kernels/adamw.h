#pragma once

#include <cmath>
#include <cstdint>

#include "octavo/kernels/host_arithmetic.h"
#include "octavo/kernels/matrix.h"

/// AdamW's step (Loshchilov and Hutter, arXiv:1711.05101), in the order of torch.optim.AdamW's
/// operations, for parameters, gradients and moments of unlike types. For each element, with t the
/// step that is being taken (1 for the first), in fp32, every operation rounded on its own:
///
///   g = gradient * clip
///   p = p * fp32(1 - lr weight_decay)
///   m = m + fp32(1 - beta1) (g - m)                 (beta1 > 0.5; else g + fp32(-beta1) (g - m))
///   v = beta2 v + (fp32(1 - beta2) g) g
///   p = p + (fp32(-lr / (1 - beta1^t)) m) / (sqrt(v) fp32(1 / sqrt(1 - beta2^t)) + eps)
///
/// (torch divides sqrt(v) by a constant instead of multiplying; division is most of the work where
/// everything is bf16.) A clip of NaN takes no step: nothing is written, neither p nor m nor v.
///
/// p is the fp32 master where there is one, and the parameter is then the master rounded once, to
/// nearest even; otherwise it is the parameter itself. Moments kept in bf16 are rounded when they
/// are written; the update uses them unrounded. NaN and Inf in a gradient go where fp32 arithmetic
/// takes them: nothing is masked. CPU and GPU give the same bits (of a NaN only that it is one).
namespace octavo::kernels {

/// The same for every parameter.
struct AdamwOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
};

/// Element types of one parameter and what belongs to it: fp32 or bf16 each.
struct AdamwTypes {
  HighPrecision parameter = HighPrecision::kFloat32;
  HighPrecision gradient = HighPrecision::kFloat32;
  HighPrecision moments = HighPrecision::kFloat32;
  bool has_master = false;  ///< then parameter is bf16

  friend bool operator==(const AdamwTypes&, const AdamwTypes&) = default;
};

/// One parameter: `size` contiguous elements of each.
struct AdamwTensor {
  void* parameter = nullptr;
  float* master = nullptr;  ///< nullptr without has_master
  const void* gradient = nullptr;
  void* exp_avg = nullptr;      ///< m
  void* exp_avg_sq = nullptr;   ///< v
  const float* step = nullptr;  ///< t, on the device of the others
  std::int64_t size = 0;
  double weight_decay = 0.0;
  /// Where the parameter's largest magnitude after the step goes, or nullptr: kernels/gpu/adamw.h.
  float* amax = nullptr;
};

/// What of the formula is the same for all elements of a tensor.
struct AdamwFactors {
  float clip;
  float decay;            ///< 1 - lr weight_decay
  float lerp;             ///< of g - m
  bool lerp_from_moment;  ///< added to m, not to g
  float beta2;
  float one_minus_beta2;
  float negative_step_size;  ///< -lr / (1 - beta1^t)
  float root_factor;         ///< 1 / sqrt(1 - beta2^t)
  float eps;
};

/// base^exponent by repeated squaring: pow() is not the same function on a CPU and a GPU.
template <class Arithmetic>
OCTAVO_HOST_DEVICE inline double adamw_power(double base, std::int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = Arithmetic::multiply(result, base);
    base = Arithmetic::multiply(base, base);
  }
  return result;
}

template <class Arithmetic>
OCTAVO_HOST_DEVICE inline AdamwFactors adamw_factors(const AdamwOptions& options,
                                                     double weight_decay, double lr, float step,
                                                     float clip) {
  using A = Arithmetic;
  const std::int64_t t = static_cast<std::int64_t>(step);
  const double correction1 = A::subtract(1.0, adamw_power<A>(options.beta1, t));
  const double correction2 = A::subtract(1.0, adamw_power<A>(options.beta2, t));
  const double one_minus_beta1 = A::subtract(1.0, options.beta1);
  // As torch.lerp: from the nearer end, so that beta1 = 0 gives g itself.
  const bool from_moment = one_minus_beta1 < 0.5;
  AdamwFactors f{};
  f.clip = clip;
  f.decay = static_cast<float>(A::subtract(1.0, A::multiply(lr, weight_decay)));
  f.lerp = static_cast<float>(from_moment ? one_minus_beta1 : -options.beta1);
  f.lerp_from_moment = from_moment;
  f.beta2 = static_cast<float>(options.beta2);
  f.one_minus_beta2 = static_cast<float>(A::subtract(1.0, options.beta2));
  f.negative_step_size = static_cast<float>(-A::divide(lr, correction1));
  f.root_factor = static_cast<float>(A::divide(1.0, A::square_root(correction2)));
  f.eps = static_cast<float>(options.eps);
  return f;
}

}  // namespace octavo::kernels
