#pragma once

#include <torch/nn/module.h>

#include <optional>

#include "octavo/ops/float8_linear.h"
#include "octavo/recipe/recipe.h"

namespace octavo::nn {

/// A weight in FP8, quantised once for several uses: the micro-batches of a step, the validation
/// after it. Costs 2 bytes an element for as long as it is filled. Nothing watches the weight: who
/// changes its values calls invalidate() (tensor versions cannot be trusted: `.data` updates and
/// fused optimisers leave them).
class WeightCache {
 public:
  /// quantize_weight(w, recipe), made at the first call after invalidate() and kept. Made anew too
  /// where w lies in other memory than then (a module moved or cloned) or the recipe is another.
  /// amax: quantize_weight()'s.
  const QuantizedLayouts& get(const at::Tensor& w, const Recipe& recipe,
                              const at::Tensor& amax = {});

  void invalidate() { weight_.reset(); }
  bool filled() const { return weight_.has_value(); }

 private:
  std::optional<QuantizedLayouts> weight_;
  const void* memory_ = nullptr;
  Recipe recipe_;
};

/// Gives every weight of octavo::nn::Linear and Experts below `module` an empty cache; without a
/// recipe it stays empty.
void enable_weight_caches(torch::nn::Module& module);

/// Empties every cache below `module`: after an optimiser's step and after loading parameters.
void invalidate_weight_caches(torch::nn::Module& module);

}  // namespace octavo::nn
