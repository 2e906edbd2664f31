#include "octavo/train/memory_ledger.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "octavo/nn/parameters.h"
#include "octavo/nn/weight_cache.h"
#include "octavo/train/memory_meter.h"

namespace octavo::train {
namespace {

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.numel() * tensor.element_size() : 0;
}

// (B, T, D), different for each token so that experts share the tokens, without random numbers.
at::Tensor some_activations(const TrainConfig& config, const at::Tensor& weight) {
  const std::int64_t D = config.model.dim;
  const at::Tensor ramp =
      at::arange(config.batch * config.sequence * D, weight.options().dtype(at::kFloat));
  return ramp.mul_(0.7).sin_().to(weight.scalar_type()).view({config.batch, config.sequence, D});
}

MemoryLedger::Blocks measure_block(const TrainConfig& config, models::Llama& llama,
                                   std::int64_t layer, const at::Tensor& x) {
  models::LlamaModelImpl& model = *llama->model;
  auto& block = model.layers->at<models::LlamaBlockImpl>(layer);
  const models::RopeTable rope = models::make_rope_table(config.sequence, config.model.head_dim(),
                                                         config.model.rope_theta, x.device());
  MemoryLedger::Blocks out{.kind = block.moe.is_empty() ? "dense" : "MoE"};
  {
    MemoryMeter meter(x.device());
    const at::Tensor y = block.self_attn(block.input_layernorm(x), rope);
    out.attention = meter.live();
  }
  {
    MemoryMeter meter(x.device());
    const at::Tensor y = block.moe.is_empty() ? block.mlp(block.post_attention_layernorm(x))
                                              : block.moe(block.post_attention_layernorm(x)).y;
    out.feed_forward = meter.live();
  }
  // The first pass leaves what stays for the whole run: workspaces of the backends.
  for (int pass = 0; pass < 2; ++pass) {
    MemoryMeter meter(x.device());
    at::Tensor y = model.run_block(layer, {x}, rope).y.sum();
    out.kept = meter.live();
    const at::Tensor dy = at::zeros_like(y);
    y.backward(dy);
    std::int64_t gradients = bytes_of(dy);
    for (const auto& [name, tensor] : nn::unique_parameters(block)) {
      gradients += bytes_of(tensor.grad());
      at::Tensor(tensor).mutable_grad().reset();
    }
    // dy is the next block's dx: it stays in.
    out.working = std::max<std::int64_t>(0, meter.peak() - out.kept - gradients + bytes_of(dy));
    at::Tensor(x).mutable_grad().reset();
  }
  return out;
}

std::string gib(std::int64_t bytes) {
  char text[32];
  const double mib = static_cast<double>(bytes) / (1 << 20);
  std::snprintf(text, sizeof text, mib < 1024 ? "%.1f MiB" : "%.2f GiB",
                mib < 1024 ? mib : mib / 1024);
  return text;
}

}  // namespace

std::int64_t MemoryLedger::activations() const {
  std::int64_t sum = ends;
  for (const Blocks& of_kind : blocks) sum += of_kind.count * of_kind.kept;
  return sum;
}

std::int64_t MemoryLedger::peak() const {
  std::int64_t working = 0;
  for (const Blocks& of_kind : blocks) working = std::max(working, of_kind.working);
  const std::int64_t always = parameters + optimizer + weight_caches;
  // Gradients appear as activations go, so between the two ends there is never more than at one.
  const std::int64_t begin = (accumulates ? gradients : head) + activations();
  const std::int64_t end = gradients + ends;
  return always + std::max(begin + std::max(loss, working), end + working);
}

std::vector<std::string> MemoryLedger::lines() const {
  std::string kinds;
  for (const Blocks& of_kind : blocks) {
    kinds += (kinds.empty() ? "" : ", ") + std::to_string(of_kind.count) + " " + of_kind.kind +
             " blocks of " + gib(of_kind.kept) + " (attention " + gib(of_kind.attention) +
             ", feed-forward " + gib(of_kind.feed_forward) + " without checkpointing)";
  }
  return {"memory      parameters " + gib(parameters) + ", gradients " + gib(gradients) +
              ", optimiser " + gib(optimizer) +
              (weight_caches > 0 ? ", weight caches " + gib(weight_caches) : std::string()) +
              "; activations " + gib(activations()) + ", loss " + gib(loss) + "; at most about " +
              gib(peak()),
          "            activations: " + kinds + ", ends " + gib(ends)};
}

nlohmann::json MemoryLedger::json() const {
  nlohmann::json kinds = nlohmann::json::array();
  for (const Blocks& of_kind : blocks) {
    kinds.push_back({{"kind", of_kind.kind},
                     {"count", of_kind.count},
                     {"kept", of_kind.kept},
                     {"attention", of_kind.attention},
                     {"feed_forward", of_kind.feed_forward},
                     {"working", of_kind.working}});
  }
  return {{"parameters", parameters},
          {"gradients", gradients},
          {"optimizer", optimizer},
          {"weight_caches", weight_caches},
          {"activations", activations()},
          {"blocks", kinds},
          {"ends", ends},
          {"loss", loss},
          {"peak", peak()}};
}

MemoryLedger memory_ledger(const TrainConfig& config, models::Llama& model, AdamW& optimizer) {
  MemoryLedger ledger;
  ledger.accumulates = config.accumulation > 1;
  for (const auto& [name, tensor] : nn::unique_parameters(*model)) {
    ledger.parameters += bytes_of(tensor);
    if (tensor.requires_grad()) ledger.gradients += bytes_of(tensor);
  }
  for (const auto& [name, tensor] : optimizer.state()) ledger.optimizer += bytes_of(tensor);
  const at::Tensor& weight = model->lm_head->weight;
  const c10::Device device = weight.device();
  ledger.head = bytes_of(weight);

  const at::Tensor x = some_activations(config, weight).requires_grad_(true);
  const std::int64_t moe_layers = config.model.moe.moe_layers(config.model.layers);
  for (const bool experts : {false, true}) {
    const std::int64_t count = experts ? moe_layers : config.model.layers - moe_layers;
    if (count == 0) continue;
    std::int64_t layer = 0;
    while (config.model.moe.is_moe_layer(layer) != experts) ++layer;
    ledger.blocks.push_back(measure_block(config, model, layer, x));
    ledger.blocks.back().count = count;
  }
  ledger.ends = 2 * bytes_of(x);

  const at::Tensor targets =
      at::zeros({config.batch, config.sequence}, x.options().dtype(at::kLong));
  for (int pass = 0; pass < 2; ++pass) {
    MemoryMeter meter(device);
    model->head_loss(x, targets).backward();
    ledger.loss = std::max<std::int64_t>(0, meter.peak() - ledger.head);
    at::Tensor(weight).mutable_grad().reset();
    at::Tensor(x).mutable_grad().reset();
  }
  // After the measuring, which fills those of its blocks.
  nn::invalidate_weight_caches(*model);
  return ledger;
}

}  // namespace octavo::train
