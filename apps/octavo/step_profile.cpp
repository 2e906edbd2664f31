#include "apps/octavo/step_profile.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace octavo::app {
namespace {

// In this order: a producer that quantises is a producer, cuDNN's attention is no product.
constexpr std::pair<std::string_view, StepKind> kParts[] = {
    {"adamw", StepKind::kOptimiser},
    {"multi_tensor_apply", StepKind::kOptimiser},
    {"foreach", StepKind::kOptimiser},
    {"lpnorm", StepKind::kOptimiser},
    {"gradient_norm", StepKind::kOptimiser},
    {"cross_entropy", StepKind::kRest},
    {"rms_norm", StepKind::kProducers},
    {"swiglu", StepKind::kProducers},
    {"silu", StepKind::kProducers},
    {"rope", StepKind::kProducers},
    {"flash", StepKind::kAttention},
    {"fmha", StepKind::kAttention},
    {"sdpa", StepKind::kAttention},
    {"attention", StepKind::kAttention},
    {"gemm", StepKind::kProducts},
    {"nvjet", StepKind::kProducts},
    {"cutlass", StepKind::kProducts},
    {"xmma", StepKind::kProducts},
    {"splitk", StepKind::kProducts},
    {"scaled_mm", StepKind::kProducts},
    {"scaled_grouped_mm", StepKind::kProducts},
    {"grouped_mm", StepKind::kProducts},
    {"aten::mm", StepKind::kProducts},
    {"aten::bmm", StepKind::kProducts},
    {"aten::addmm", StepKind::kProducts},
    {"aten::linear", StepKind::kProducts},
    {"octavo::float8_", StepKind::kProducts},
    {"quantize", StepKind::kQuantisation},
    {"amax", StepKind::kQuantisation},
    {"cast_kernel", StepKind::kQuantisation},
    {"resident", StepKind::kQuantisation},
    {"scale_kernel", StepKind::kQuantisation},
};

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return out;
}

void synchronize(c10::Device device) {
  if (!device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

}  // namespace

const char* name(StepKind kind) {
  constexpr const char* kNames[kStepKinds] = {"products",  "quantisation", "attention",
                                              "producers", "optimiser",    "rest"};
  return kNames[static_cast<int>(kind)];
}

StepKind kind_of(std::string_view kernel) {
  const std::string lower = lower_case(kernel);
  for (const auto& [part, kind] : kParts) {
    if (lower.find(part) != std::string::npos) return kind;
  }
  return StepKind::kRest;
}

std::array<double, kStepKinds> StepProfile::share() const {
  std::array<double, kStepKinds> out{};
  for (const KernelTime& kernel : kernels) {
    out[static_cast<std::size_t>(kind_of(kernel.name))] += kernel.seconds / seconds;
  }
  return out;
}

double StepProfile::idle() const {
  double busy = 0;
  for (const double part : share()) busy += part;
  return std::max(0.0, 1.0 - busy);
}

int StepProfile::launches() const {
  int launches = 0;
  for (const KernelTime& kernel : kernels) launches += kernel.launches;
  return launches;
}

StepProfile profile_step(c10::Device device, const std::function<void()>& step) {
  StepProfile profile;
  step();
  profile.kernels = kernel_times(device, [&] {
    synchronize(device);
    const auto begin = std::chrono::steady_clock::now();
    step();
    synchronize(device);
    profile.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
  return profile;
}

}  // namespace octavo::app
