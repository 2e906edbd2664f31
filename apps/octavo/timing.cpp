#include "apps/octavo/timing.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "octavo/train/metrics.h"

namespace octavo::app {
namespace {

std::int64_t cache_bytes(c10::Device device) {
#if OCTAVO_WITH_CUDA
  if (device.is_cuda()) return cuda_cache_bytes(device);
#endif
  TORCH_CHECK(device.is_cpu(), "device: expected cpu, got ", device, "; build the preset cuda");
  const long bytes = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : std::int64_t{1} << 20;  // some containers do not tell
}

double seconds_of(c10::Device device, const std::function<void()>& work) {
#if OCTAVO_WITH_CUDA
  if (device.is_cuda()) return cuda_seconds(work);
#endif
  (void)device;
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int rotation_for(c10::Device device, std::int64_t bytes_of_a_set) {
  const std::int64_t sets = 2 * cache_bytes(device) / std::max<std::int64_t>(bytes_of_a_set, 1) + 1;
  return static_cast<int>(std::clamp<std::int64_t>(sets, 2, 16));
}

std::vector<double> median_seconds(c10::Device device, const Timing& timing,
                                   const std::vector<Contender>& contenders) {
  const auto sweep = [&](const Contender& contender) {
    if (device.is_cuda()) contender(timing.rotation - 1);
    return seconds_of(device, [&] {
      for (int i = 0; i < timing.rotation; ++i) contender(i);
    });
  };
  for (const Contender& contender : contenders) {
    for (int i = 0; i < timing.rotation; ++i) contender(i);
  }
  const bool settles = device.is_cuda() && timing.settle > 0.0;
  const int rounds = settles ? std::min(4, timing.repetitions) : timing.repetitions;
  std::vector<std::vector<double>> samples(contenders.size());
  for (int round = 0; round < rounds; ++round) {
    const int until = (round + 1) * timing.repetitions / rounds;
    for (std::size_t c = 0; c < contenders.size(); ++c) {
      if (settles) {
        for (double ran = 0.0; ran < timing.settle;) ran += sweep(contenders[c]);
      }
      while (static_cast<int>(samples[c].size()) < until)
        samples[c].push_back(sweep(contenders[c]) / timing.rotation);
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& of_one : samples) medians.push_back(train::median(of_one));
  return medians;
}

}  // namespace octavo::app
