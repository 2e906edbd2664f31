#include "octavo/kernels/cpu/targets.h"

#include <hwy/highway.h>

namespace octavo::kernels {

std::vector<std::int64_t> cpu_targets() {
  // HWY_TARGETS: what foreach_target.h compiles. The lower the bit, the better the target.
  const std::int64_t all = HWY_TARGETS & (hwy::SupportedTargets() | HWY_STATIC_TARGET);
  std::vector<std::int64_t> targets;
  for (int bit = 0; bit < 63; ++bit) {
    if (all >> bit & 1) targets.push_back(std::int64_t{1} << bit);
  }
  return targets;
}

std::string cpu_target_name(std::int64_t target) { return hwy::TargetName(target); }

void use_cpu_target(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace octavo::kernels
