#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "octavo/nn/float8_layer.h"

namespace octavo::nn {

struct LinearOptions {
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool bias = false;
  bool high_precision = false;    ///< conversion leaves it alone whatever it is asked
  at::TensorOptions tensor = {};  ///< dtype and device of weight and bias
};

/// y = x . w^T (+ bias). Without a recipe an ordinary linear; with one, float8_linear. Converting
/// sets the recipe and allocates nothing; parameters keep their names, so state dicts of
/// converted and plain models are interchangeable.
class LinearImpl : public torch::nn::Cloneable<LinearImpl>, public Float8Layer {
 public:
  explicit LinearImpl(const LinearOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor forward(const torch::Tensor& x);  // (..., in) -> (..., out)

  /// Registers `other` itself as this module's weight: one tensor under two names, whose gradient
  /// is the sum of both uses. Errors: a shape other than (out_features, in_features).
  void tie_weight(const torch::Tensor& other);

  LinearOptions options;
  torch::Tensor weight;  // (out_features, in_features)
  torch::Tensor bias;    // (out_features) or undefined
};
TORCH_MODULE(Linear);

}  // namespace octavo::nn
