#pragma once

#include <hwy/targets.h>

#include <cstdint>

namespace octavo::testing {

/// Calls `body(name)` once for each instruction set this machine has and the kernels were compiled
/// for, with run-time dispatch held to it.
template <class Body>
void for_each_target(const Body& body) {
  const std::int64_t all = hwy::SupportedTargets();
  for (std::int64_t rest = all; rest != 0; rest &= rest - 1) {
    const std::int64_t target = rest & ~(rest - 1);
    hwy::GetChosenTarget().Update(target);
    body(hwy::TargetName(target));
  }
  hwy::GetChosenTarget().Update(all);
}

}  // namespace octavo::testing
