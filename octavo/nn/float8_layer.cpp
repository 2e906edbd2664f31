#include "octavo/nn/float8_layer.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <unordered_set>

namespace octavo::nn {
namespace {

// Whether somebody wants to see gradients of w as autograd hands them over.
bool has_hooks(const at::Tensor& w) {
  namespace impl = torch::autograd::impl;
  if (!impl::hooks(w).empty() || impl::post_acc_grad_hooks(w) != nullptr) return true;
  const auto accumulator = impl::try_get_grad_accumulator(w);
  return accumulator && !(accumulator->pre_hooks().empty() && accumulator->post_hooks().empty());
}

}  // namespace

torch::Tensor Float8Layer::gradient_to_add_to(const torch::Tensor& weight) const {
  if (!accumulate_gradient || !at::GradMode::is_enabled() || !weight.requires_grad()) return {};
  const at::Tensor& gradient = weight.grad();
  const bool fits = gradient.defined() && gradient.is_contiguous() &&
                    gradient.scalar_type() == weight.scalar_type() && !has_hooks(weight);
  return fits ? gradient : torch::Tensor();
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
  std::map<const c10::TensorImpl*, int> names;
  for (const auto& item : module.named_parameters()) ++names[item.value().unsafeGetTensorImpl()];
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
