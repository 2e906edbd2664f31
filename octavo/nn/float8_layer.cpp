#include "octavo/nn/float8_layer.h"

#include <unordered_set>

#include "octavo/nn/owned_gradient.h"
#include "octavo/nn/parameters.h"

namespace octavo::nn {
torch::Tensor Float8Layer::gradient_to_add_to(const torch::Tensor& weight) const {
  return accumulate_gradient && owns_gradient(weight) ? weight.grad() : torch::Tensor();
}

std::vector<NamedFloat8Layer> float8_layers(const torch::nn::Module& module) {
  std::vector<NamedFloat8Layer> layers;
  std::unordered_set<const Float8Layer*> seen;
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    auto* layer = dynamic_cast<Float8Layer*>(item.value().get());
    if (layer != nullptr && seen.insert(layer).second) layers.push_back({item.key(), layer});
  }
  return layers;
}

void accumulate_gradients(torch::nn::Module& module) {
  auto names = name_counts(module);
  module.apply([&](torch::nn::Module& each) {
    auto* layer = dynamic_cast<Float8Layer*>(&each);
    if (layer == nullptr) return;
    for (const Float8Layer::CachedWeight& one : layer->cached_weights()) {
      if (names[one.weight.unsafeGetTensorImpl()] != 1) return;
    }
    layer->accumulate_gradient = true;
  });
}

}  // namespace octavo::nn
