#include "octavo/train/memory_meter.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <optional>

#include "octavo/train/metrics.h"

namespace octavo::train {
struct MemoryMeter::State {
  // What LibTorch's CPU allocator reports to a profiler.
  struct CpuReports : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t,
                           c10::Device where) override {
      if (!where.is_cpu()) return;
      live += size;
      peak = std::max(peak, live);
    }
    bool memoryProfilingEnabled() const override { return true; }

    std::int64_t live = 0, peak = 0;
  };

  explicit State(c10::Device device) : device(device) {
    if (device.is_cpu()) {
      reports = std::make_shared<CpuReports>();
      guard.emplace(c10::DebugInfoKind::PROFILER_STATE, reports);
    } else {
      forget_peak_memory(device);
      before = memory_of(device).resident;
    }
  }

  c10::Device device;
  std::int64_t before = 0;
  std::shared_ptr<CpuReports> reports;
  std::optional<c10::DebugInfoGuard> guard;
};

MemoryMeter::MemoryMeter(c10::Device device) : state_(std::make_unique<State>(device)) {}
MemoryMeter::~MemoryMeter() = default;

std::int64_t MemoryMeter::live() const {
  return state_->reports ? state_->reports->live
                         : memory_of(state_->device).resident - state_->before;
}

std::int64_t MemoryMeter::peak() const {
  return state_->reports ? state_->reports->peak : memory_of(state_->device).peak - state_->before;
}

}  // namespace octavo::train
