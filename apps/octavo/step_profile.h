#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "apps/octavo/breakdown.h"

/// Where a training step's time goes, by what ran: kernels on a GPU, LibTorch's operators on the
/// CPU, as breakdown.h lists them.
namespace octavo::app {

/// What a kernel or operator is for.
enum class StepKind : std::uint8_t {
  /// Matrix products, whatever their operands' format. On the CPU an FP8 linear is one operator,
  /// quantisation included.
  kProducts,
  kQuantisation,  ///< amax, scales and casts in kernels of their own
  kAttention,     ///< scaled dot product attention, both directions
  kProducers,     ///< RMSNorm, SwiGLU, RoPE, those that quantise what they write too
  kOptimiser,     ///< AdamW, gradient norm
  kRest,          ///< cross-entropy, embedding, copies, additions, everything else
};
inline constexpr int kStepKinds = 6;
const char* name(StepKind kind);  ///< "products", "quantisation", ...

/// Told by the name: a part of it decides ("adamw_kernel", "nvjet", "aten::mm").
StepKind kind_of(std::string_view kernel);

struct StepProfile {
  double seconds = 0;               ///< of the recorded step, waiting for the device included
  std::vector<KernelTime> kernels;  ///< longest first

  std::array<double, kStepKinds> share() const;  ///< of `seconds`, by kind
  /// What of `seconds` no kernel ran in (the host was late); 0 or more.
  double idle() const;
  int launches() const;
};

/// One step under the profiler, after one that is not recorded (on the CPU the profiler starts with
/// it). Recording makes a step a little longer than it is; shares are of the recorded time. Errors:
/// kernel_times()'s.
StepProfile profile_step(c10::Device device, const std::function<void()>& step);

}  // namespace octavo::app
