#include "octavo/models/feed_forward.h"

#include <ATen/Functions.h>

namespace octavo::models {

nn::Linear make_linear(std::int64_t in_features, std::int64_t out_features,
                       const at::TensorOptions& tensor) {
  return nn::Linear(nn::LinearOptions{
      .in_features = in_features, .out_features = out_features, .tensor = tensor});
}

LlamaMlpImpl::LlamaMlpImpl(std::int64_t dim, std::int64_t hidden, const at::TensorOptions& tensor) {
  gate_proj = register_module("gate_proj", make_linear(dim, hidden, tensor));
  up_proj = register_module("up_proj", make_linear(dim, hidden, tensor));
  down_proj = register_module("down_proj", make_linear(hidden, dim, tensor));
}

torch::Tensor LlamaMlpImpl::forward(const torch::Tensor& x) {
  const nn::LinearInput input = nn::share_input(x, {gate_proj.get(), up_proj.get()});
  return down_proj(at::silu(gate_proj->forward_shared(input)) * up_proj->forward_shared(input));
}

}  // namespace octavo::models
