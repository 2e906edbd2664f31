#include "octavo/nn/weight_cache.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "octavo/nn/float8_layer.h"

namespace octavo::nn {
const QuantizedLayouts& WeightCache::get(const at::Tensor& w, const Recipe& recipe,
                                         const at::Tensor& amax) {
  const void* memory = w.const_data_ptr();
  if (!weight_ || memory != memory_ || recipe != recipe_) {
    // Ordinary tensors, whatever mode the first use runs in: a later one may record a graph.
    const c10::InferenceMode inference(false);
    const c10::NoGradGuard no_grad;
    weight_ = quantize_weight(w, recipe, amax);
    memory_ = memory;
    recipe_ = recipe;
  }
  return *weight_;
}

void enable_weight_caches(torch::nn::Module& module) {
  module.apply([](torch::nn::Module& each) {
    auto* layer = dynamic_cast<Float8Layer*>(&each);
    if (layer == nullptr) return;
    for (const Float8Layer::CachedWeight& one : layer->cached_weights()) one.cache.emplace();
  });
}

void invalidate_weight_caches(torch::nn::Module& module) {
  module.apply([](torch::nn::Module& each) {
    auto* layer = dynamic_cast<Float8Layer*>(&each);
    if (layer == nullptr) return;
    for (const Float8Layer::CachedWeight& one : layer->cached_weights()) {
      if (one.cache) one.cache->invalidate();
    }
  });
}

}  // namespace octavo::nn
