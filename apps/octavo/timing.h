#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

/// The clock of `octavo bench`, one for the CPU and for GPUs.
namespace octavo::app {

/// One way of doing the work that is compared: a call does it once, on the operands of that index.
using Contender = std::function<void(int operands)>;

/// How many sets of operands to rotate through, so that none is still in the cache when its turn
/// comes again: together more than twice what the device's L2 holds, at least 2 and at most 16.
int rotation_for(c10::Device device, std::int64_t bytes_of_a_set);

/// How contenders are timed.
struct Timing {
  int rotation = 2;     ///< sets of operands
  int repetitions = 9;  ///< samples of each contender
  /// Seconds a contender runs on a GPU before its samples: a card at its power limit clocks by what
  /// it has just run, so each is timed at the clocks that its own work leads to, as in training.
  double settle = 0.0;
};
inline constexpr double kSettle = 0.15;  ///< for products

/// Seconds of one call of each contender, medians of the samples. A sample is a sweep over all
/// operands divided by their number. The contenders take turns, sample by sample or, where they
/// settle, in four rounds, so that a slow minute of a shared machine slows all of them. Each is
/// called on all operands once before.
///
/// On a GPU CUDA events on the current stream measure, and a call that is not timed goes before
/// each sweep: the device is busy while the host prepares the first timed one. Work of less device
/// time than the host needs to issue it measures the host, as it does in eager training.
std::vector<double> median_seconds(c10::Device device, const Timing& timing,
                                   const std::vector<Contender>& contenders);

#if OCTAVO_WITH_CUDA
/// Seconds between CUDA events before and after `work` on the current stream; waits for it.
double cuda_seconds(const std::function<void()>& work);
/// Bytes of the device's L2 cache.
std::int64_t cuda_cache_bytes(c10::Device device);
#endif

}  // namespace octavo::app
