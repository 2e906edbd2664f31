#pragma once

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

#include "octavo/nn/weight_cache.h"
#include "octavo/ops/float8_linear.h"
#include "octavo/recipe/recipe.h"

namespace octavo::nn {

struct Float8Layer;

/// Told of every product x . w^T of a converted layer, as long as Float8Layer::observer names it.
struct ProductObserver {
  virtual ~ProductObserver() = default;
  /// weight: "" of a linear; "gate_up_proj" or "down_proj" of experts. y is as the layer returns it
  /// (experts: as that product gives it). What is given is not to be changed.
  virtual void saw(const Float8Layer& layer, const char* weight, const at::Tensor& x,
                   const at::Tensor& w, const at::Tensor& y) = 0;
};

/// What a module with weights that FP8 products can take has besides them: Linear and Experts.
/// convert_to_float8_training() sets the recipe.
struct Float8Layer {
  virtual ~Float8Layer() = default;

  /// A weight and its cache, which is off (no value) by default: enable_weight_caches().
  struct CachedWeight {
    const torch::Tensor& weight;
    std::optional<WeightCache>& cache;
  };
  virtual std::vector<CachedWeight> cached_weights() = 0;

  std::optional<Recipe> recipe;  ///< none: high precision
  KeepWeightTransposed keep_weight_transposed = KeepWeightTransposed::kAuto;
  /// For a trainer that owns the weights: from the second backward pass on, while weight.grad()
  /// holds the first's gradient, dw is added to it inside the product
  /// (Float8LinearOptions::accumulate_into). Ignored without a recipe, where the weight has hooks,
  /// and where its gradient is not contiguous or of another dtype.
  bool accumulate_gradient = false;
  ProductObserver* observer = nullptr;  ///< not owned

 protected:
  /// weight.grad() where dw is to be added to it, otherwise undefined.
  torch::Tensor gradient_to_add_to(const torch::Tensor& weight) const;
};

struct NamedFloat8Layer {
  std::string fqn;
  Float8Layer* layer;
};

/// Every one below `module`, in the order modules are registered; one registered
/// twice appears under its first name.
std::vector<NamedFloat8Layer> float8_layers(const torch::nn::Module& module);

/// Sets accumulate_gradient on every one below `module`, and on itself, whose weights have no
/// second name there (tied weights have gradients of two origins).
void accumulate_gradients(torch::nn::Module& module);

}  // namespace octavo::nn
