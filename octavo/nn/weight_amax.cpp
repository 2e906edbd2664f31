#include "octavo/nn/weight_amax.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <limits>

#include "octavo/nn/linear.h"
#include "octavo/nn/parameters.h"

namespace octavo::nn {

at::Tensor WeightAmax::memory(const at::Tensor& w) {
  if (!memory_.defined() || memory_.device() != w.device()) {
    const c10::InferenceMode inference(false);
    memory_ = at::empty({}, w.options().dtype(at::kFloat).requires_grad(false));
    forget();
  }
  return memory_;
}

void WeightAmax::found(const at::Tensor& w) {
  forget();
  if (w.is_inference()) return;  // has no version
  seen_.emplace(Seen{.storage = w.storage().getWeakStorageImpl(),
                     .data = w.const_data_ptr(),
                     .sizes = w.sizes().vec(),
                     .strides = w.strides().vec(),
                     .dtype = w.scalar_type(),
                     .version = static_cast<std::uint32_t>(w._version())});
}

at::Tensor WeightAmax::of(const at::Tensor& w) const {
  const bool known = seen_ && !w.is_inference() && w.device() == memory_.device() &&
                     seen_->storage._unsafe_get_target() == w.storage().unsafeGetStorageImpl() &&
                     seen_->data == w.const_data_ptr() && w.sizes() == seen_->sizes &&
                     w.strides() == seen_->strides && w.scalar_type() == seen_->dtype &&
                     static_cast<std::uint32_t>(w._version()) == seen_->version;
  return known ? memory_ : at::Tensor();
}

void WeightAmax::refresh(const at::Tensor& w) {
  if (of(w).defined()) return;
  const c10::NoGradGuard no_grad;
  at::Tensor amax = memory(w);
  if (w.numel() == 0) {
    amax.zero_();
  } else {
    amax.copy_(at::linalg_vector_norm(w.detach(), std::numeric_limits<double>::infinity()));
  }
  found(w);
}

std::vector<LinearImpl*> track_weight_amaxes(torch::nn::Module& module) {
  auto names = name_counts(module);
  std::vector<LinearImpl*> tracked;
  module.apply([&](torch::nn::Module& each) {
    auto* linear = dynamic_cast<LinearImpl*>(&each);
    if (linear == nullptr || !linear->recipe) return;
    if (names[linear->weight.unsafeGetTensorImpl()] != 1) return;
    const LinearSpec spec = linear->recipe->resolve(Flavour::kOCP);  // granularities are the same
    if (spec.forward.b->granularity != Granularity::tensorwise() &&
        spec.dx.b->granularity != Granularity::tensorwise()) {
      return;
    }
    if (!linear->weight_amax) linear->weight_amax.emplace();
    tracked.push_back(linear);
  });
  return tracked;
}

}  // namespace octavo::nn
