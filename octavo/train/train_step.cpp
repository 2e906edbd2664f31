#include "octavo/train/train_step.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "octavo/nn/weight_cache.h"
#include "octavo/train/fp8_stats.h"

namespace octavo::train {
namespace {

// Tokens of the busiest expert over its block's mean, of the block where that is largest: fp64.
at::Tensor largest_expert_load(const std::vector<nn::Router>& routers) {
  std::vector<at::Tensor> loads;
  for (const nn::Router& router : routers) {
    const at::Tensor load = router->load().to(at::kDouble);
    loads.push_back(load.max() / load.mean());
  }
  return at::stack(loads).max();
}

at::Tensor mean_of(const std::vector<at::Tensor>& scalars) {
  return at::stack(scalars).to(at::kDouble).mean();
}

// Copied without waiting: from pinned memory, which LibTorch's allocator keeps until the copy has
// run.
void copy_to(at::Tensor& device, const at::Tensor& host, c10::Device where) {
  if (where.is_cpu()) {
    device = host;
    return;
  }
  if (!device.defined()) device = at::empty(host.sizes(), host.options().device(where));
  TORCH_CHECK(device.sizes() == host.sizes(), "step: expected micro-batches of ", device.sizes(),
              " as in the first step, got ", host.sizes(),
              "; keep batch, sequence and accumulation");
  device.copy_(host.pin_memory(), /*non_blocking=*/true);
}

}  // namespace

StepFigures StepFigures::read(const at::Tensor& figures) {
  const at::Tensor host = figures.cpu();
  const double* value = host.const_data_ptr<double>();
  return {
      .loss = value[0], .gradient_norm = value[1], .aux_loss = value[2], .expert_load = value[3]};
}

TrainStep::Options TrainStep::Options::of(const TrainConfig& config) {
  return {.clip_norm = config.clip_norm,
          .cuda_graph = config.cuda_graph,
          .gradients_in_place = config.gradients_in_place,
          .weight_amaxes = config.fusion};
}

TrainStep::TrainStep(models::Llama model, AdamW& optimizer, const Options& options)
    : model_(std::move(model)), optimizer_(optimizer), options_(options) {
  const c10::Device device = model_->lm_head->weight.device();
  health_ = at::zeros({}, at::TensorOptions(at::kDouble).device(device));
  nn::accumulate_gradients(*model_);
  if (options_.gradients_in_place) nn::put_gradients_in_place(*model_);
  if (options_.weight_amaxes) tracked_ = nn::track_weight_amaxes(*model_);
  for (nn::LinearImpl* linear : tracked_) {
    amaxes_[linear->weight.unsafeGetTensorImpl()] = &*linear->weight_amax;
  }
  if (!options_.cuda_graph) return;
  graph_ = std::make_unique<GraphedWork>(
      device, [this] { return step(nullptr); }, [this] { optimizer_.zero_grad(); });
}

at::Tensor TrainStep::run(const Batch& micro_batches, double lr, nlohmann::ordered_json* health) {
  const c10::Device device = health_.device();
  copy_to(batch_.tokens, micro_batches.tokens, device);
  copy_to(batch_.targets, micro_batches.targets, device);
  optimizer_.set_learning_rate(lr);
  for (nn::LinearImpl* linear : tracked_) linear->weight_amax->refresh(linear->weight);
  const at::Tensor figures = graph_ && health == nullptr ? graph_->run() : step(health);
  // A replay does not run the host's side of the step, and validation may have filled them.
  nn::invalidate_weight_caches(*model_);
  return figures;
}

at::Tensor TrainStep::step(nlohmann::ordered_json* health) {
  optimizer_.zero_grad();
  const std::int64_t count = batch_.tokens.size(0);
  std::vector<at::Tensor> losses, aux_losses;
  for (std::int64_t i = 0; i < count; ++i) {
    std::optional<Fp8Sampler> sampler;
    if (i == 0 && health != nullptr) sampler.emplace(model_);
    const double share = 1.0 / static_cast<double>(count);
    at::Tensor loss = model_->loss(batch_.tokens.select(0, i), batch_.targets.select(0, i), share);
    losses.push_back(loss.detach());
    if (const at::Tensor& aux = model_->aux_loss(); aux.defined()) {
      aux_losses.push_back(aux.detach());
      loss = loss + aux;
    }
    loss.backward(at::full_like(loss, share));
    if (sampler) *health = sampler->layers();
  }
  nn::invalidate_weight_caches(*model_);

  c10::NoGradGuard no_grad;
  const at::Tensor loss = mean_of(losses), norm = optimizer_.gradient_norm();
  // 0 * Inf and 0 * NaN are NaN, and stay it.
  health_.add_((loss + norm).mul_(0.0));
  const at::Tensor clip = clip_factor(norm, options_.clip_norm).add_(health_);
  optimizer_.step(clip, amaxes_);
  const at::Tensor none = at::zeros_like(loss);
  const std::vector<nn::Router> routers = model_->routers();
  const at::Tensor load = routers.empty() ? none : largest_expert_load(routers);
  for (const nn::Router& router : routers) nn::Router(router)->update_bias(clip == clip);
  return at::stack(
      {loss, norm.to(at::kDouble), aux_losses.empty() ? none : mean_of(aux_losses), load});
}

}  // namespace octavo::train
