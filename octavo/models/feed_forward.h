#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

#include "octavo/nn/fusion.h"
#include "octavo/nn/linear.h"

namespace octavo::models {

/// A linear of a model: without bias; the model fills its weight (initialise_weights()).
nn::Linear make_linear(std::int64_t in_features, std::int64_t out_features,
                       const at::TensorOptions& tensor);

/// SwiGLU: down(silu(gate(x)) * up(x)), the network of a dense block and the shared expert of an
/// MoE one. Where its linears have one recipe they run as one operation, float8_swiglu_mlp().
class LlamaMlpImpl : public torch::nn::Module, public nn::FusedLayers {
 public:
  LlamaMlpImpl(std::int64_t dim, std::int64_t hidden, const at::TensorOptions& tensor);

  torch::Tensor forward(const torch::Tensor& x);  // (..., D) -> (..., D)
  torch::Tensor forward_shared(const nn::LinearInput& input);

  /// How forward_shared() takes x quantised, or nothing: it does not.
  std::optional<nn::InputRecipe> input_recipe(const torch::Tensor& x) const;

  nn::Linear gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};

 private:
  bool fuses(const torch::Tensor& x) const;
};
TORCH_MODULE(LlamaMlp);

}  // namespace octavo::models
