#pragma once

#include <bit>
#include <cstdint>

#include "octavo/kernels/cpu/targets.h"

namespace octavo::kernels {

/// body(name) for each instruction set this machine has.
template <class Body>
void for_each_target(const Body& body) {
  for (std::int64_t target : cpu_targets()) {
    use_cpu_target(target);
    body(cpu_target_name(target));
  }
  use_cpu_target(0);
}

inline std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

}  // namespace octavo::kernels
