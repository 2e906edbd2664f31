#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "octavo/nn/float8_layer.h"
#include "octavo/nn/weight_amax.h"
#include "octavo/ops/float8_linear.h"
#include "octavo/recipe/recipe.h"

namespace octavo::nn {

struct LinearOptions {
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool bias = false;
  bool initialise = true;         ///< false: the parameters' memory is left as it is
  bool high_precision = false;    ///< conversion leaves it alone whatever it is asked
  at::TensorOptions tensor = {};  ///< dtype and device of weight and bias
};

class LinearImpl;

/// x for several linears that read it: quantised once where they have the same recipe. RMSNorm
/// makes one whose x may have no values (nn/rms_norm.h).
struct LinearInput {
  at::Tensor x;                                    // (..., in)
  std::optional<QuantizedLayouts> quantized = {};  ///< by `recipe`
  std::optional<Recipe> recipe = {};
};

/// x for `linears`. It is quantised here where a graph is recorded, autocast is off and at least
/// two have the first one's recipe; the bits are those of each quantising x itself, and what
/// backward keeps of x is kept once.
LinearInput share_input(const at::Tensor& x, const std::vector<const LinearImpl*>& linears);

/// How linears that run as one operation take x quantised: quantize_input()'s arguments.
struct InputRecipe {
  Recipe recipe;
  bool need_dw = false;
};

/// That of `linears`, where they run as one operation on x: all have one recipe, no bias and no
/// observer, a graph is recorded and autocast is off.
std::optional<InputRecipe> recipe_together(const at::Tensor& x,
                                           const std::vector<const LinearImpl*>& linears);

/// Every linear's y of one input: with `fusion`, where there is a recipe_together(), as one
/// operation (float8_linears()), otherwise with share_input().
std::vector<at::Tensor> forward_together(const LinearInput& input,
                                         const std::vector<LinearImpl*>& linears, bool fusion);

/// y = x . w^T (+ bias). Without a recipe an ordinary linear; with one, float8_linear. Converting
/// sets the recipe and allocates nothing; parameters keep their names, so state dicts of
/// converted and plain models are interchangeable.
class LinearImpl : public torch::nn::Cloneable<LinearImpl>, public Float8Layer {
 public:
  explicit LinearImpl(const LinearOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::vector<CachedWeight> cached_weights() override { return {{weight, weight_cache}}; }

  torch::Tensor forward(const torch::Tensor& x);  // (..., in) -> (..., out)
  torch::Tensor forward_shared(const LinearInput& input);

  /// How float8_linear() is called: of a linear with a recipe.
  Float8LinearOptions float8_options();

  /// Registers `other` itself as this module's weight: one tensor under two names, whose gradient
  /// is the sum of both uses. Errors: a shape other than (out_features, in_features).
  void tie_weight(const torch::Tensor& other);

  LinearOptions options;
  torch::Tensor weight;  // (out_features, in_features)
  torch::Tensor bias;    // (out_features) or undefined
  std::optional<WeightCache> weight_cache;
  std::optional<WeightAmax> weight_amax;  ///< off by default: track_weight_amaxes()
  /// For a trainer that owns the weight: without a recipe and on a GPU backward writes dw to
  /// weight.grad(), or adds it, in the product itself. Ignored where owns_gradient()
  /// (owned_gradient.h) says no.
  bool gradient_in_place = false;
};
TORCH_MODULE(Linear);

/// Sets gradient_in_place on every linear below `module` whose weight has no second name there, and
/// on every embedding. A tied embedding adds rows to what the head has written, or the head to
/// those.
void put_gradients_in_place(torch::nn::Module& module);

}  // namespace octavo::nn
