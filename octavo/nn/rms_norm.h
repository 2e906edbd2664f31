#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace octavo::nn {

struct RMSNormOptions {
  std::int64_t features = 0;
  double eps = 1e-5;
  at::TensorOptions tensor = {};  ///< dtype and device of the weight
};

/// y = x / sqrt(mean(x^2 over the last dimension) + eps) * w, differentiable in x and w.
///
/// x: (..., D) any floating dtype; w: (D). y: (..., D) in x's dtype. Computed in fp32 (in fp64 for
/// fp64 input) and rounded once at the end. Backward keeps x, w and one fp32 number per row.
/// An empty x gives an empty y and zero dw. A NaN or Inf makes its own row NaN and no other.
/// Errors: a last dimension that is not w's size.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& w, double eps);

/// Llama's normalisation; the weight starts at one and is called "weight".
class RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl> {
 public:
  explicit RMSNormImpl(const RMSNormOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor forward(const torch::Tensor& x);  // (..., D) -> (..., D)

  RMSNormOptions options;
  torch::Tensor weight;  // (D)
};
TORCH_MODULE(RMSNorm);

}  // namespace octavo::nn
