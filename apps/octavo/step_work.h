#pragma once

#include "apps/octavo/bench_rates.h"
#include "octavo/device/architecture.h"
#include "octavo/device/peak_rates.h"
#include "octavo/models/llama.h"
#include "octavo/train/config.h"

namespace octavo::app {

/// What one training step must do at least, for the floor and for MFU.
struct StepWork {
  /// Products with operands in FP8: those that the recipes of the model's layers say.
  double fp8_operations = 0;
  /// All others and attention (models::flops_per_token() less the above).
  double bf16_operations = 0;
  /// Read or written in passes beside the products: each operand read once in the model's dtype
  /// (q, k and v read one, gate and up too) and written once in each FP8 layout that its products
  /// take, weights once a micro-batch or, with a cache, a step; AdamW's parameters, gradients
  /// (twice, for their norm), moments and masters. Norms, RoPE, SwiGLU, the residual stream and
  /// cross-entropy are left out: a floor under the floor.
  double bytes = 0;

  double operations() const { return fp8_operations + bf16_operations; }
  /// Bytes at the measured copy rate, operations at the measured products' rates.
  double floor_seconds(const MachineRates& rates) const {
    return rates.floor_seconds(bytes, fp8_operations, bf16_operations);
  }
  /// Share of a step of `seconds` in which the device's dense BF16 peak would do it all.
  double mfu(const PeakRates& peak, double seconds) const {
    return operations() / peak.bf16 / seconds;
  }
  /// The same at a mixed peak: FP8 products at the FP8 peak, the rest at BF16's.
  double mixed_mfu(const PeakRates& peak, double seconds) const {
    return (fp8_operations / peak.fp8.value_or(peak.bf16) + bf16_operations / peak.bf16) / seconds;
  }
};

/// Of the model as it is converted now.
StepWork step_work(const train::TrainConfig& config, const models::LlamaImpl& model,
                   const Architecture& architecture);

}  // namespace octavo::app
