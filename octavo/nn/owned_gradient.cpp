#include "octavo/nn/owned_gradient.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace octavo::nn {
namespace {

bool has_hooks(const at::Tensor& w) {
  namespace impl = torch::autograd::impl;
  if (!impl::hooks(w).empty() || impl::post_acc_grad_hooks(w) != nullptr) return true;
  const auto accumulator = impl::try_get_grad_accumulator(w);
  return accumulator && !(accumulator->pre_hooks().empty() && accumulator->post_hooks().empty());
}

}  // namespace

bool owns_gradient(const at::Tensor& w) {
  if (!at::GradMode::is_enabled() || !w.requires_grad() || !w.is_contiguous()) return false;
  if (w.scalar_type() != at::kFloat && w.scalar_type() != at::kBFloat16) return false;
  if (at::autocast::is_autocast_enabled(w.device().type()) || has_hooks(w)) return false;
  const at::Tensor& gradient = w.grad();
  return !gradient.defined() ||
         (gradient.is_contiguous() && gradient.scalar_type() == w.scalar_type());
}

}  // namespace octavo::nn
