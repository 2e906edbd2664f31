#include "octavo/models/feed_forward.h"

#include "octavo/ops/below.h"
#include "octavo/ops/float8_swiglu_mlp.h"
#include "octavo/ops/swiglu.h"

namespace octavo::models {

nn::Linear make_linear(std::int64_t in_features, std::int64_t out_features,
                       const at::TensorOptions& tensor) {
  return nn::Linear(nn::LinearOptions{.in_features = in_features,
                                      .out_features = out_features,
                                      .initialise = false,  // llama_initialise.h
                                      .tensor = tensor});
}

LlamaMlpImpl::LlamaMlpImpl(std::int64_t dim, std::int64_t hidden, const at::TensorOptions& tensor) {
  gate_proj = register_module("gate_proj", make_linear(dim, hidden, tensor));
  up_proj = register_module("up_proj", make_linear(dim, hidden, tensor));
  down_proj = register_module("down_proj", make_linear(hidden, dim, tensor));
}

bool LlamaMlpImpl::fuses(const torch::Tensor& x) const {
  if (!fusion || !gate_proj->recipe) return false;
  int trained = 0;
  for (const nn::Linear& linear : {gate_proj, up_proj, down_proj}) {
    if (linear->recipe != gate_proj->recipe || linear->bias.defined() || linear->observer ||
        linear->keep_weight_transposed != gate_proj->keep_weight_transposed ||
        linear->weight.scalar_type() != gate_proj->weight.scalar_type()) {
      return false;
    }
    trained += linear->weight.requires_grad();
  }
  // The operation computes the gradients of all three weights or of none.
  if (trained != 0 && trained != 3) return false;
  // Weights that are quantised already enter only where a graph is recorded without autocast.
  return !gate_proj->weight_cache ||
         ((trained || x.requires_grad()) && ops::records_without_autocast(x));
}

std::optional<nn::InputRecipe> LlamaMlpImpl::input_recipe(const torch::Tensor& x) const {
  if (!fuses(x)) return std::nullopt;
  return nn::recipe_together(x, {gate_proj.get(), up_proj.get(), down_proj.get()});
}

torch::Tensor LlamaMlpImpl::forward(const torch::Tensor& x) { return forward_shared({.x = x}); }

torch::Tensor LlamaMlpImpl::forward_shared(const nn::LinearInput& input) {
  const torch::Tensor& x = input.x;
  if (!fuses(x)) {
    const auto both = nn::forward_together(input, {gate_proj.get(), up_proj.get()}, fusion);
    return down_proj(swiglu(both[0], both[1]));
  }
  const Recipe& recipe = *gate_proj->recipe;
  Float8SwigluMlpOptions with{.keep_weight_transposed = gate_proj->keep_weight_transposed};
  if (input.quantized) with.input = &*input.quantized;
  std::size_t i = 0;
  for (nn::Linear linear : {gate_proj, up_proj, down_proj}) {
    const Float8LinearOptions options = linear->float8_options();
    with.weights[i] = options.weight;
    with.weight_amaxes[i] = options.weight_amax;
    with.accumulate_into[i++] = options.accumulate_into;
  }
  return float8_swiglu_mlp(x, gate_proj->weight, up_proj->weight, down_proj->weight, recipe, with);
}

}  // namespace octavo::models
