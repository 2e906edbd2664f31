#include "octavo/train/step_log.h"

#include <algorithm>

#include "octavo/device/peak_rates.h"
#include "octavo/models/llama_accounting.h"
#include "octavo/quantize/architecture_of.h"
#include "octavo/train/diverged.h"

namespace octavo::train {

StepLog::StepLog(const TrainConfig& config, c10::Device device, JsonLines& metrics,
                 std::function<void(const std::string&)> say)
    : config_(config), device_(device), metrics_(metrics), say_(std::move(say)) {}

void StepLog::begin() {
  if (pending_.empty()) begin_ = std::chrono::steady_clock::now();
}

void StepLog::add(std::int64_t step, double lr, const at::Tensor& figures,
                  nlohmann::ordered_json fp8_layers) {
  pending_.push_back({step, lr, figures, std::move(fp8_layers)});
}

bool StepLog::shown(std::int64_t step) const {
  return step % std::max<std::int64_t>(config_.log_every, 1) == 0 || step == config_.steps;
}

bool StepLog::due(std::int64_t step) const {
  return device_.is_cpu() || seconds_.empty() || shown(step);
}

void StepLog::read() {
  if (pending_.empty()) return;
  std::vector<StepFigures> figures;
  // The first waits for the device, which then has all but the last.
  for (auto step = pending_.rbegin(); step != pending_.rend(); ++step) {
    figures.insert(figures.begin(), StepFigures::read(step->figures));
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count() /
      static_cast<double>(pending_.size());
  const std::vector<Pending> steps = std::move(pending_);
  pending_.clear();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    check_finite(figures[i], config_, steps[i].step);
    record(steps[i], figures[i], seconds);
  }
}

// Of the device's dense bf16 rate; none where that is not known (the CPU).
std::optional<double> StepLog::mfu(double tokens_per_second) const {
  const auto peak = peak_rates(product_name(device_));
  if (!peak) return std::nullopt;
  return models::flops_per_token(config_.model, config_.sequence).total() * tokens_per_second /
         peak->bf16;
}

void StepLog::record(const Pending& step, const StepFigures& figures, double seconds) {
  losses_.push_back(figures.loss);
  seconds_.push_back(seconds);
  const double tokens =
      static_cast<double>(config_.batch * config_.sequence * config_.accumulation);
  nlohmann::json line = {{"event", "train"},
                         {"step", step.step},
                         {"loss", figures.loss},
                         {"gradient_norm", figures.gradient_norm},
                         {"lr", step.lr},
                         {"seconds", seconds},
                         {"tokens_per_second", tokens / seconds},
                         {"memory", memory_of(device_).resident}};
  if (config_.model.moe.experts > 0) {
    line["aux_loss"] = figures.aux_loss;
    line["expert_load"] = figures.expert_load;
  }
  metrics_.write(line);
  if (!step.fp8_layers.is_null())
    metrics_.write({{"event", "fp8"}, {"step", step.step}, {"layers", step.fp8_layers}});
  if (!(shown(step.step) || seconds_.size() == 1)) return;
  // The pace of the last few steps: the first ones warm up.
  const std::size_t recent = std::min<std::size_t>(seconds_.size(), 20);
  const double pace =
      median({seconds_.end() - static_cast<std::ptrdiff_t>(recent), seconds_.end()});
  say_(progress_line({.step = step.step,
                      .steps = config_.steps,
                      .loss = figures.loss,
                      .gradient_norm = figures.gradient_norm,
                      .lr = step.lr,
                      .tokens_per_second = tokens / pace,
                      .mfu = mfu(tokens / pace),
                      .memory = memory_of(device_),
                      .seconds_left = pace * static_cast<double>(config_.steps - step.step)}));
}

}  // namespace octavo::train
