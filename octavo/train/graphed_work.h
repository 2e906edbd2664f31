#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace octavo::train {

/// Work on a GPU that is queued kernel by kernel the first times and from then on as one CUDA
/// graph: the same kernels in the same order on the same memory, without the host's time for each.
///
/// All runs, eager ones too, go to a stream of its own, ordered after what the current stream holds
/// and before what it gets next. What `work` reads and writes must lie where it lay at the capture;
/// what it allocates comes from memory that the graph keeps. The host's side of it is not repeated.
class GraphedWork {
 public:
  static constexpr int kEagerRuns = 2;  ///< they choose GEMM algorithms and fill caches

  /// `before_capture` frees what `work` allocates anew each time (gradients), so that eager memory
  /// does not stay beside the graph's. Errors: not a GPU, a build without GPU kernels.
  GraphedWork(c10::Device device, std::function<at::Tensor()> work,
              std::function<void()> before_capture);
  ~GraphedWork();

  /// Runs the work once and gives what it returned, in memory of its own. Errors: those of `work`;
  /// what cannot be captured (a copy to the host, the product of a shape not met before).
  at::Tensor run();

  bool captured() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octavo::train
