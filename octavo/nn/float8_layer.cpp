#include "octavo/nn/float8_layer.h"

#include <unordered_set>

namespace octavo::nn {

std::vector<NamedFloat8Layer> float8_layers(const torch::nn::Module& module) {
  std::vector<NamedFloat8Layer> layers;
  std::unordered_set<const Float8Layer*> seen;
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    auto* layer = dynamic_cast<Float8Layer*>(item.value().get());
    if (layer != nullptr && seen.insert(layer).second) layers.push_back({item.key(), layer});
  }
  return layers;
}

}  // namespace octavo::nn
