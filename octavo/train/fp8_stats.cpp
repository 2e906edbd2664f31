#include "octavo/train/fp8_stats.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <tuple>

#include "octavo/nn/experts.h"
#include "octavo/nn/linear.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/quantize/quantize.h"

namespace octavo::train {
namespace {

constexpr std::uint8_t kMagnitudeBits = 0x7F;

// (R, C) from a scale for each block, on any device.
at::Tensor spread(const ScaledTensor& matrix) {
  const Granularity& blocks = matrix.granularity;
  at::Tensor scale = matrix.scale.to(at::kFloat);
  if (blocks.block_rows > 1) scale = scale.repeat_interleave(blocks.block_rows, 0);
  if (blocks.block_columns > 1) scale = scale.repeat_interleave(blocks.block_columns, 1);
  if (blocks.block_rows > 0) scale = scale.narrow(0, 0, matrix.rows());
  if (blocks.block_columns > 0) scale = scale.narrow(1, 0, matrix.columns());
  return scale;
}

}  // namespace

at::Tensor operand_sums(const at::Tensor& operand, const LayoutSpec& layout) {
  const c10::NoGradGuard no_grad;
  const at::Tensor x = operand.detach().reshape({-1, operand.size(-1)});
  const ScaledTensor rows = quantize_operand(x, {.rows = layout}).rows;
  const at::Tensor data = rows.data.narrow(0, 0, rows.rows()).narrow(1, 0, rows.columns());
  const at::Tensor v = x.to(at::kFloat);
  const at::Tensor stored = data.to(at::kFloat) * spread(rows);
  const at::Tensor counts = at::isfinite(v).logical_and_(at::isfinite(stored));
  const at::Tensor zero = at::zeros({}, v.options());
  const at::Tensor kept = at::where(counts, v, zero);
  // Squares of small gradients would leave fp32's range.
  const at::Tensor amax = kept.numel() > 0 ? kept.abs().max() : zero;
  const at::Tensor inverse = at::where(amax > 0, amax, at::ones_like(amax)).reciprocal_();
  const at::Tensor error = at::where(counts, v - stored, zero).mul_(inverse);
  const at::Tensor magnitude = data.view(at::kByte).bitwise_and(kMagnitudeBits);
  const at::Tensor flushed = kept.ne(0).logical_and_(stored.eq(0));
  const at::Tensor saturated = magnitude.eq(limits(layout.format).max_byte).logical_and_(counts);
  const auto total = [](const at::Tensor& each) { return each.sum(at::kDouble); };
  return at::stack({total(saturated), total(flushed), total(counts),
                    total((kept * inverse).square_()), total(error.square())});
}

OperandHealth operand_health(const at::Tensor& sums) {
  const at::Tensor host = sums.to(at::kCPU, at::kDouble).contiguous();
  const double* s = host.const_data_ptr<double>();
  const double count = std::max(s[2], 1.0);
  return {
      .saturated = s[0] / count,
      .flushed = s[1] / count,
      .snr_db = s[3] > 0 ? 10 * std::log10(s[3] / s[4]) : std::numeric_limits<double>::quiet_NaN()};
}

struct Fp8Sampler::State : nn::ProductObserver {
  using Key =
      std::tuple<const nn::Float8Layer*, std::string, std::string>;  // layer, weight, operand

  void add(const nn::Float8Layer* layer, const std::string& weight, const char* operand,
           const at::Tensor& sampled) {
    const std::lock_guard lock(mutex);
    at::Tensor& slot = sums[{layer, weight, operand}];
    slot = slot.defined() ? slot + sampled : sampled;
  }

  void saw(const nn::Float8Layer& layer, const char* weight, const at::Tensor& x,
           const at::Tensor& w, const at::Tensor& y) override {
    if (!c10::GradMode::is_enabled() || !layer.recipe) return;
    const Flavour flavour = architecture_of(x.device()).flavour;
    const bool experts = w.dim() == 3;
    const LinearSpec spec =
        experts ? layer.recipe->resolve_experts(flavour) : layer.recipe->resolve(flavour);
    if (!spec.forward.high_precision()) {
      add(&layer, weight, "x", operand_sums(x, *spec.forward.a));
      for (std::int64_t e = 0; e < (experts ? w.size(0) : 1); ++e)
        add(&layer, weight, "w", operand_sums(experts ? w.select(0, e) : w, *spec.forward.b));
    }
    if (spec.dx.high_precision() || !y.requires_grad()) return;
    // Backward can run while no sampler lives any more, and on threads of its own.
    y.register_hook([weak = self, of = &layer, weight, layout = *spec.dx.a](const at::Tensor& dy) {
      if (const auto state = weak.lock()) state->add(of, weight, "dy", operand_sums(dy, layout));
    });
  }

  std::mutex mutex;
  std::map<Key, at::Tensor> sums;
  std::vector<nn::NamedFloat8Layer> layers;
  models::Llama model{nullptr};  // keeps the layers alive
  std::weak_ptr<State> self;
};

Fp8Sampler::Fp8Sampler(models::Llama& model) : state_(std::make_shared<State>()) {
  state_->self = state_;
  state_->model = model;
  state_->layers = nn::float8_layers(*model);
  for (const nn::NamedFloat8Layer& named : state_->layers) named.layer->observer = state_.get();
}

Fp8Sampler::~Fp8Sampler() {
  for (const nn::NamedFloat8Layer& named : state_->layers) named.layer->observer = nullptr;
}

nlohmann::ordered_json Fp8Sampler::layers() const {
  const std::lock_guard lock(state_->mutex);
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  if (state_->sums.empty()) return all;
  std::vector<at::Tensor> each;
  std::map<State::Key, std::int64_t> row;
  for (const auto& [key, sums] : state_->sums) {
    row[key] = static_cast<std::int64_t>(each.size());
    each.push_back(sums);
  }
  const at::Tensor host = at::stack(each).to(at::kCPU);
  for (const nn::NamedFloat8Layer& named : state_->layers) {
    for (const char* weight : {"", "gate_up_proj", "down_proj"}) {
      for (const char* operand : {"x", "w", "dy"}) {
        const auto found = row.find({named.layer, weight, operand});
        if (found == row.end()) continue;
        const OperandHealth health = operand_health(host[found->second]);
        nlohmann::ordered_json figures = {
            {"saturated", health.saturated}, {"flushed", health.flushed}, {"snr_db", nullptr}};
        if (std::isfinite(health.snr_db)) figures["snr_db"] = health.snr_db;
        all[named.fqn + (*weight == '\0' ? "" : ".") + weight][operand] = figures;
      }
    }
  }
  return all;
}

}  // namespace octavo::train
