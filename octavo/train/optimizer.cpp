#include "octavo/train/optimizer.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <map>
#include <unordered_set>

namespace octavo::train {

NamedTensors deduplicate(const NamedTensors& named) {
  NamedTensors unique;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& entry : named) {
    if (seen.insert(entry.second.unsafeGetTensorImpl()).second) unique.push_back(entry);
  }
  return unique;
}

AdamW::Options AdamW::Options::of(const TrainConfig& config) {
  return {.beta1 = config.beta1,
          .beta2 = config.beta2,
          .eps = config.adam_eps,
          .weight_decay = config.weight_decay};
}

AdamW::AdamW(const NamedTensors& parameters, const Options& options) : options_(options) {
  for (const auto& entry : deduplicate(parameters)) {
    const at::Tensor& parameter = entry.second;
    if (!parameter.requires_grad()) continue;
    parameters_.push_back(entry);
    slots_.push_back({at::zeros_like(parameter), at::zeros_like(parameter),
                      at::zeros({}, parameter.options().dtype(at::kFloat))});
    for (at::Tensor* state : {&slots_.back().exp_avg, &slots_.back().exp_avg_sq}) {
      state->set_requires_grad(false);
    }
  }
  TORCH_CHECK(!parameters_.empty(),
              "parameters: expected at least one that requires a gradient, got none of ",
              parameters.size(), "; nothing would be trained");
}

void AdamW::step(double lr) {
  c10::NoGradGuard no_grad;
  for (const bool decayed : {true, false}) {
    std::vector<at::Tensor> parameters, gradients, exp_avgs, exp_avg_sqs, steps;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& parameter = parameters_[i].second;
      if ((parameter.dim() >= 2) != decayed || !parameter.grad().defined()) continue;
      parameters.push_back(parameter);
      gradients.push_back(parameter.grad());
      exp_avgs.push_back(slots_[i].exp_avg);
      exp_avg_sqs.push_back(slots_[i].exp_avg_sq);
      steps.push_back(slots_[i].step);
    }
    if (parameters.empty()) continue;
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(parameters, gradients, exp_avgs, exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps,
                      lr, options_.beta1, options_.beta2, decayed ? options_.weight_decay : 0.0,
                      options_.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
}

void AdamW::zero_grad() {
  for (auto& entry : parameters_) entry.second.mutable_grad().reset();
}

double AdamW::clip_gradients(double max_norm) {
  c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& entry : parameters_) {
    if (entry.second.grad().defined()) gradients.push_back(entry.second.grad());
  }
  if (gradients.empty()) return 0.0;
  const std::vector<at::Tensor> norms = at::_foreach_norm(gradients, 2, at::kFloat);
  const double norm = at::linalg_vector_norm(at::stack(norms)).item<float>();
  // Written so that NaN takes the branch that changes nothing; Inf would make zeros and NaN.
  const double coefficient = max_norm / (norm + 1e-6);
  if (max_norm > 0.0 && coefficient < 1.0 && coefficient > 0.0) {
    at::_foreach_mul_(gradients, coefficient);
  }
  return norm;
}

NamedTensors AdamW::state() const {
  NamedTensors state;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].first;
    state.emplace_back(name + ".exp_avg", slots_[i].exp_avg);
    state.emplace_back(name + ".exp_avg_sq", slots_[i].exp_avg_sq);
    state.emplace_back(name + ".step", slots_[i].step);
  }
  return state;
}

void AdamW::load_state(const NamedTensors& state) {
  c10::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> missing;
  for (const auto& [name, tensor] : this->state()) missing[name] = tensor;
  // Everything is checked before anything is written.
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const auto& [name, tensor] : state) {
    const auto found = missing.find(name);
    TORCH_CHECK(found != missing.end(), "state: '", name,
                "' belongs to no parameter of this model or "
                "comes twice; the checkpoint is another model's");
    const at::Tensor& live = found->second;
    TORCH_CHECK(tensor.sizes() == live.sizes() && tensor.scalar_type() == live.scalar_type(),
                "state: '", name, "' should be ", live.scalar_type(), " ", live.sizes(), ", got ",
                tensor.scalar_type(), " ", tensor.sizes(),
                "; use the configuration the checkpoint was made with");
    copies.emplace_back(live, tensor);
    missing.erase(found);
  }
  TORCH_CHECK(missing.empty(), "state: '", missing.begin()->first,
              "' is missing; the checkpoint is another model's or incomplete");
  for (auto& [live, tensor] : copies) live.copy_(tensor);
}

}  // namespace octavo::train
