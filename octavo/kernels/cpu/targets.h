#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octavo::kernels {

/// The instruction sets (Highway targets) that are compiled in and that this CPU has, best first.
std::vector<std::int64_t> cpu_targets();

/// "AVX2" and the like.
std::string cpu_target_name(std::int64_t target);

/// Makes every CPU kernel use `target` (one of cpu_targets()), 0: the best one again. For tests and
/// benchmarks: every target gives the same bytes. Not while kernels run on other threads.
void use_cpu_target(std::int64_t target);

}  // namespace octavo::kernels
