#pragma once

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

#include "octavo/ops/float8_linear.h"
#include "octavo/recipe/recipe.h"

namespace octavo::nn {

/// What a module with weights that FP8 products can take has besides them: Linear and Experts.
/// convert_to_float8_training() sets the recipe.
struct Float8Layer {
  virtual ~Float8Layer() = default;

  std::optional<Recipe> recipe;  ///< none: high precision
  KeepWeightTransposed keep_weight_transposed = KeepWeightTransposed::kAuto;
};

struct NamedFloat8Layer {
  std::string fqn;
  Float8Layer* layer;
};

/// Every one below `module`, in the order modules are registered; one registered
/// twice appears under its first name.
std::vector<NamedFloat8Layer> float8_layers(const torch::nn::Module& module);

}  // namespace octavo::nn
