#include "apps/octavo/breakdown.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "apps/octavo/timing.h"

namespace octavo::app {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

// Names of template instances tell their parameters, which go on for lines.
constexpr std::size_t kNameWidth = 100;

// Nanoseconds of each event without those of the events inside it on its thread.
std::vector<std::uint64_t> self_times(const std::vector<const profiler::KinetoEvent*>& events) {
  std::vector<std::size_t> order(events.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto key = [&](std::size_t i) {  // outer events first
      return std::tuple(events[i]->startThreadId(), events[i]->startNs(), ~events[i]->durationNs());
    };
    return key(a) < key(b);
  });
  std::vector<std::uint64_t> times(events.size());
  std::vector<std::size_t> open;
  for (std::size_t i : order) {
    while (!open.empty() && (events[open.back()]->startThreadId() != events[i]->startThreadId() ||
                             events[open.back()]->endNs() <= events[i]->startNs())) {
      open.pop_back();
    }
    times[i] = events[i]->durationNs();
    if (!open.empty()) times[open.back()] -= std::min(times[open.back()], times[i]);
    open.push_back(i);
  }
  return times;
}

// What has not ended when the profiler stops is not in its list.
void run_to_its_end([[maybe_unused]] c10::Device device, const std::function<void()>& work) {
#if OCTAVO_WITH_CUDA
  if (device.is_cuda()) return static_cast<void>(cuda_seconds(work));
#endif
  work();
}

}  // namespace

std::vector<KernelTime> kernel_times(c10::Device device, const std::function<void()>& work) {
  using torch::profiler::impl::ProfilerConfig;
  using torch::profiler::impl::ProfilerState;
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device.is_cuda()) activities = {ActivityType::CUDA};
  const ProfilerConfig config(ProfilerState::KINETO);
  const auto profile = [&] {
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION});
    run_to_its_end(device, work);
    return profiler::disableProfiler();
  };
  if (device.is_cpu()) {
    // Where there is no GPU the profiler says so on stderr, which nobody asked.
    ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
    profile();  // the first events pay for the profiler's own start
  }
  const auto result = profile();

  std::vector<const profiler::KinetoEvent*> events;
  for (const profiler::KinetoEvent& event : result->events()) {
    if (event.deviceType() == device.type()) events.push_back(&event);
  }
  TORCH_CHECK(!events.empty(), "--breakdown: the profiler saw no kernel of ", device,
              "; end other profilers of this GPU and see that CUPTI is there, or leave it out");
  const std::vector<std::uint64_t> times = self_times(events);
  std::map<std::string, KernelTime> sums;
  for (std::size_t i = 0; i < events.size(); ++i) {
    KernelTime& sum = sums[events[i]->name()];
    sum.name = events[i]->name();
    ++sum.launches;
    sum.seconds += static_cast<double>(times[i]) * 1e-9;
  }
  std::vector<KernelTime> kernels;
  for (const auto& [name, sum] : sums) kernels.push_back(sum);
  std::sort(kernels.begin(), kernels.end(),
            [](const KernelTime& a, const KernelTime& b) { return a.seconds > b.seconds; });
  return kernels;
}

std::string breakdown_text(const std::vector<KernelTime>& kernels) {
  std::string text;
  char line[64];
  double seconds = 0;
  int launches = 0;
  for (const KernelTime& kernel : kernels) {
    std::snprintf(line, sizeof line, "%12.1f us %5d x ", kernel.seconds * 1e6, kernel.launches);
    text += line + kernel.name.substr(0, kNameWidth) + "\n";
    seconds += kernel.seconds;
    launches += kernel.launches;
  }
  std::snprintf(line, sizeof line, "%12.1f us %5d launches", seconds * 1e6, launches);
  return text + line;
}

nlohmann::ordered_json breakdown_json(const std::vector<KernelTime>& kernels) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const KernelTime& kernel : kernels) {
    json.push_back({{"name", kernel.name},
                    {"launches", kernel.launches},
                    {"microseconds", kernel.seconds * 1e6}});
  }
  return json;
}

}  // namespace octavo::app
