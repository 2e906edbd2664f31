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
at::Tensor on_device(const at::Tensor& tensor, c10::Device device) {
  if (tensor.device() == device) return tensor;
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

// Likewise, to memory that stays.
void copy_to(at::Tensor& place, const at::Tensor& tensor, c10::Device device) {
  if (!place.defined()) place = at::empty(tensor.sizes(), tensor.options().device(device));
  TORCH_CHECK(place.sizes() == tensor.sizes(), "cuda_graph: expected micro-batches of ",
              place.sizes(), " as in the first step, got ", tensor.sizes(),
              "; keep batch and sequence, or set cuda_graph to false");
  place.copy_(tensor.is_cpu() ? tensor.pin_memory() : tensor, /*non_blocking=*/true);
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
      device,
      [this] {
        const auto read = [this](std::int64_t i) { return graphed_[i]; };
        return *step({.count = std::int64_t(graphed_.size()), .read = read}, nullptr);
      },
      [this] { optimizer_.zero_grad(); });
}

std::optional<at::Tensor> TrainStep::run(const MicroBatches& batches, double lr,
                                         nlohmann::ordered_json* health) {
  TORCH_CHECK(batches.count > 0, "step: expected at least 1 micro-batch, got ", batches.count,
              "; set accumulation to 1 or more");
  optimizer_.set_learning_rate(lr);
  for (nn::LinearImpl* linear : tracked_) linear->weight_amax->refresh(linear->weight);
  const std::optional<at::Tensor> figures =
      graph_ && health == nullptr ? graphed_step(batches) : step(batches, health);
  // A replay does not run the host's side of the step, and validation may have filled them.
  nn::invalidate_weight_caches(*model_);
  return figures;
}

std::optional<at::Tensor> TrainStep::graphed_step(const MicroBatches& batches) {
  if (graphed_.empty()) graphed_.resize(batches.count);
  TORCH_CHECK(batches.count == std::int64_t(graphed_.size()), "cuda_graph: expected ",
              graphed_.size(), " micro-batches as in the first step, got ", batches.count,
              "; keep accumulation, or set cuda_graph to false");
  for (std::int64_t i = 0; i < batches.count; ++i) {
    const std::optional<Batch> batch = batches.read(i);
    if (!batch) return std::nullopt;
    copy_to(graphed_[i].tokens, batch->tokens, health_.device());
    copy_to(graphed_[i].targets, batch->targets, health_.device());
  }
  return graph_->run();
}

std::optional<at::Tensor> TrainStep::step(const MicroBatches& batches,
                                          nlohmann::ordered_json* health) {
  // A step before can have been dropped, or ended in an error.
  optimizer_.zero_grad();
  const std::vector<nn::Router> routers = model_->routers();
  for (const nn::Router& router : routers) nn::Router(router)->forget_load();

  std::vector<at::Tensor> losses, aux_losses;
  for (std::int64_t i = 0; i < batches.count; ++i) {
    const std::optional<Batch> batch = batches.read(i);
    if (!batch) return std::nullopt;
    std::optional<Fp8Sampler> sampler;
    if (i == 0 && health != nullptr) sampler.emplace(model_);
    const double share = 1.0 / static_cast<double>(batches.count);
    at::Tensor loss = model_->loss(on_device(batch->tokens, health_.device()),
                                   on_device(batch->targets, health_.device()), share);
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
  const at::Tensor load = routers.empty() ? none : largest_expert_load(routers);
  for (const nn::Router& router : routers) nn::Router(router)->update_bias(clip == clip);
  return at::stack(
      {loss, norm.to(at::kDouble), aux_losses.empty() ? none : mean_of(aux_losses), load});
}

}  // namespace octavo::train
