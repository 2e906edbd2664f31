#include "octavo/nn/rms_norm.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "octavo/ops/quantized_rms_norm.h"

namespace octavo::nn {

RMSNormImpl::RMSNormImpl(const RMSNormOptions& options) : options(options) { reset(); }

void RMSNormImpl::reset() {
  TORCH_CHECK(options.features >= 0, "RMSNorm: features: expected 0 or more, got ",
              options.features, "; give the size of the last dimension");
  TORCH_CHECK(std::isfinite(options.eps) && options.eps >= 0,
              "RMSNorm: eps: expected a finite number, 0 or more, got ", options.eps,
              "; models have 1e-6 or 1e-5");
  weight = register_parameter("weight", torch::ones({options.features}, options.tensor));
}

void RMSNormImpl::pretty_print(std::ostream& stream) const {
  stream << "octavo::nn::RMSNorm(" << options.features << ", eps " << options.eps << ")";
}

torch::Tensor RMSNormImpl::forward(const torch::Tensor& x) {
  return rms_norm(x, weight, options.eps);
}

std::tuple<torch::Tensor, torch::Tensor> RMSNormImpl::forward_residual(
    const torch::Tensor& x, const torch::Tensor& residual) {
  return add_rms_norm(x, residual, weight, options.eps);
}

LinearInput RMSNormImpl::forward_for(const torch::Tensor& x,
                                     const std::optional<InputRecipe>& recipe) {
  if (!recipe) return {.x = forward(x)};
  QuantizedRmsNorm made =
      quantized_rms_norm(x, std::nullopt, weight, options.eps, recipe->recipe, recipe->need_dw);
  return {.x = made.y, .quantized = made.quantized, .recipe = recipe->recipe};
}

std::tuple<torch::Tensor, LinearInput> RMSNormImpl::forward_residual_for(
    const torch::Tensor& x, const torch::Tensor& residual,
    const std::optional<InputRecipe>& recipe) {
  if (!recipe) {
    auto [h, y] = forward_residual(x, residual);
    return {h, LinearInput{.x = y}};
  }
  QuantizedRmsNorm made =
      quantized_rms_norm(x, residual, weight, options.eps, recipe->recipe, recipe->need_dw);
  return {made.h, LinearInput{.x = made.y, .quantized = made.quantized, .recipe = recipe->recipe}};
}

}  // namespace octavo::nn
