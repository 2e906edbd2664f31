#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "octavo/train/config.h"
#include "octavo/train/metrics.h"
#include "octavo/train/train_step.h"

namespace octavo::train {

/// What a run says of its steps: a line of metrics.jsonl for each, a progress line every log_every.
///
/// A step's figures stay on the device until read() asks for those of all steps since the last
/// call, once: the device is never waited for in between. The seconds of the steps read together
/// are their mean.
class StepLog {
 public:
  /// `say` prints a progress line.
  StepLog(const TrainConfig& config, c10::Device device, JsonLines& metrics,
          std::function<void(const std::string&)> say);

  /// A step begins: the clock starts here unless steps before it are unread.
  void begin();
  /// It has been queued; `step` counts it. fp8_layers: its health, where it was sampled.
  void add(std::int64_t step, double lr, const at::Tensor& figures,
           nlohmann::ordered_json fp8_layers = nullptr);
  /// Whether the figures should be read after this step: always on the CPU, which has them, and on
  /// a GPU for the first step, the last and those with a progress line.
  bool due(std::int64_t step) const;
  /// Waits for the device, writes the lines. Errors: check_finite() of the first step that is not,
  /// after the lines of those before.
  void read();

  const std::vector<double>& losses() const { return losses_; }         ///< read so far
  const std::vector<double>& step_seconds() const { return seconds_; }  ///< likewise

 private:
  struct Pending {
    std::int64_t step;
    double lr;
    at::Tensor figures;
    nlohmann::ordered_json fp8_layers;  ///< null: not sampled
  };
  void record(const Pending& step, const StepFigures& figures, double seconds);
  std::optional<double> mfu(double tokens_per_second) const;
  bool shown(std::int64_t step) const;

  const TrainConfig& config_;
  c10::Device device_;
  JsonLines& metrics_;
  std::function<void(const std::string&)> say_;
  std::chrono::steady_clock::time_point begin_;
  std::vector<Pending> pending_;
  std::vector<double> losses_, seconds_;
};

}  // namespace octavo::train
