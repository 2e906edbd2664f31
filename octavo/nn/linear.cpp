#include "octavo/nn/linear.h"

#include <cmath>

namespace octavo::nn {

LinearImpl::LinearImpl(const LinearOptions& options) : options(options) { reset(); }

void LinearImpl::reset() {
  weight = register_parameter(
      "weight", torch::empty({options.out_features, options.in_features}, options.tensor));
  // LibTorch warns of an undefined parameter that is to require a gradient.
  bias = options.bias
             ? register_parameter("bias", torch::empty({options.out_features}, options.tensor))
             : register_parameter("bias", torch::Tensor(), /*requires_grad=*/false);
  // torch.nn.Linear's initialisation: uniform within 1 / sqrt(in_features).
  const double bound = options.in_features > 0 ? 1.0 / std::sqrt(double(options.in_features)) : 0.0;
  torch::NoGradGuard no_grad;
  weight.uniform_(-bound, bound);
  if (bias.defined()) bias.uniform_(-bound, bound);
}

void LinearImpl::tie_weight(const torch::Tensor& other) {
  TORCH_CHECK(other.dim() == 2 && other.size(0) == options.out_features &&
                  other.size(1) == options.in_features,
              "tie_weight: the other weight is ", other.sizes(), "; this linear's is [",
              options.out_features, ", ", options.in_features, "]");
  parameters_["weight"] = other;
  weight = other;
}

void LinearImpl::pretty_print(std::ostream& stream) const {
  stream << "octavo::nn::Linear(" << options.in_features << ", " << options.out_features
         << (options.bias ? ", bias" : "") << (recipe ? ", recipe " + recipe->to_string() : "")
         << ")";
}

torch::Tensor LinearImpl::forward(const torch::Tensor& x) {
  if (!recipe) return at::linear(x, weight, bias);
  const std::optional<at::Tensor> b =
      bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  return float8_linear(x, weight, b, *recipe, keep_weight_transposed);
}

}  // namespace octavo::nn
