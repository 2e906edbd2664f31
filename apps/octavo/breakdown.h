#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace octavo::app {

/// What one kernel of a piece of work (on the CPU: one operator) took.
struct KernelTime {
  std::string name;
  int launches = 0;
  double seconds = 0;  ///< of all launches; on the CPU without the operators called inside
};

/// Runs `work` once under LibTorch's profiler; the slowest kernel first. Copies and fills that a
/// GPU does for it are kernels too. Errors: on a GPU, where the profiler saw no kernel (CUPTI is
/// held by another process, or was not found).
std::vector<KernelTime> kernel_times(c10::Device device, const std::function<void()>& work);

/// "   511.2 us   2 x name", one a line, names cut to fit, and the sum.
std::string breakdown_text(const std::vector<KernelTime>& kernels);
/// [{"name", "launches", "microseconds"}, ...]
nlohmann::ordered_json breakdown_json(const std::vector<KernelTime>& kernels);

}  // namespace octavo::app
