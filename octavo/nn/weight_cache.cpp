#include "octavo/nn/weight_cache.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "octavo/nn/linear.h"

namespace octavo::nn {
namespace {

template <class Body>
void for_each_linear(torch::nn::Module& module, const Body& body) {
  module.apply([&](torch::nn::Module& each) {
    if (auto* linear = dynamic_cast<LinearImpl*>(&each)) body(*linear);
  });
}

}  // namespace

const QuantizedLayouts& WeightCache::get(const at::Tensor& w, const Recipe& recipe) {
  const void* memory = w.const_data_ptr();
  if (!weight_ || memory != memory_ || recipe != recipe_) {
    // Ordinary tensors, whatever mode the first use runs in: a later one may record a graph.
    const c10::InferenceMode inference(false);
    const c10::NoGradGuard no_grad;
    weight_ = quantize_weight(w, recipe);
    memory_ = memory;
    recipe_ = recipe;
  }
  return *weight_;
}

void enable_weight_caches(torch::nn::Module& module) {
  for_each_linear(module, [](LinearImpl& linear) { linear.weight_cache.emplace(); });
}

void invalidate_weight_caches(torch::nn::Module& module) {
  for_each_linear(module, [](LinearImpl& linear) {
    if (linear.weight_cache) linear.weight_cache->invalidate();
  });
}

}  // namespace octavo::nn
