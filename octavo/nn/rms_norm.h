#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "octavo/nn/linear.h"
#include "octavo/ops/rms_norm.h"

namespace octavo::nn {

struct RMSNormOptions {
  std::int64_t features = 0;
  double eps = 1e-5;
  at::TensorOptions tensor = {};  ///< dtype and device of the weight
};

/// Llama's normalisation; the weight starts at one and is called "weight".
class RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl> {
 public:
  explicit RMSNormImpl(const RMSNormOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor forward(const torch::Tensor& x);  // (..., D) -> (..., D)
  /// h = x + residual and its normalisation, in one pass on a GPU (ops/rms_norm.h).
  std::tuple<torch::Tensor, torch::Tensor> forward_residual(const torch::Tensor& x,
                                                            const torch::Tensor& residual);

  /// The same as the input of linears that take it by `recipe`, quantised as it is computed
  /// (quantized_rms_norm()); without one in high precision.
  LinearInput forward_for(const torch::Tensor& x, const std::optional<InputRecipe>& recipe);
  std::tuple<torch::Tensor, LinearInput> forward_residual_for(
      const torch::Tensor& x, const torch::Tensor& residual,
      const std::optional<InputRecipe>& recipe);

  RMSNormOptions options;
  torch::Tensor weight;  // (D)
};
TORCH_MODULE(RMSNorm);

}  // namespace octavo::nn
