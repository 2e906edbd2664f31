#include "octavo/train/graphed_work.h"

#include <c10/util/Exception.h>

#if OCTAVO_WITH_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/clone.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace octavo::train {

#if OCTAVO_WITH_CUDA

struct GraphedWork::State {
  State(c10::Device device, std::function<at::Tensor()> given, std::function<void()> before)
      : work(std::move(given)),
        before_capture(std::move(before)),
        stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}

  // On `stream`.
  void capture() {
    before_capture();
    c10::cuda::CUDACachingAllocator::emptyCache();
    auto candidate = std::make_unique<at::cuda::CUDAGraph>();
    candidate->capture_begin();
    try {
      output = work();
    } catch (...) {
      try {
        candidate->capture_end();  // what failed is of more interest than that this fails too
      } catch (const c10::Error&) {
      }
      throw;
    }
    candidate->capture_end();
    graph = std::move(candidate);
  }

  std::function<at::Tensor()> work;
  std::function<void()> before_capture;
  c10::cuda::CUDAStream stream;
  at::cuda::CUDAEvent given, done;
  int runs = 0;
  at::Tensor output;
  std::unique_ptr<at::cuda::CUDAGraph> graph;
};

GraphedWork::GraphedWork(c10::Device device, std::function<at::Tensor()> work,
                         std::function<void()> before_capture) {
  TORCH_CHECK(device.is_cuda(), "cuda_graph: expected a model on a GPU, got ", device,
              "; set device to cuda, or cuda_graph to false");
  state_ = std::make_unique<State>(device, std::move(work), std::move(before_capture));
}

at::Tensor GraphedWork::run() {
  State& s = *state_;
  const c10::cuda::CUDAStream outside = c10::cuda::getCurrentCUDAStream(s.stream.device_index());
  s.given.record(outside);
  s.given.block(s.stream);
  at::Tensor result;
  {
    const c10::cuda::CUDAStreamGuard guard(s.stream);
    if (s.runs++ < kEagerRuns) {
      result = s.work();
    } else {
      if (!s.graph) s.capture();
      s.graph->replay();
      result = s.output.clone();
    }
  }
  s.done.record(s.stream);
  s.done.block(outside);
  return result;
}

bool GraphedWork::captured() const { return state_->graph != nullptr; }

#else

struct GraphedWork::State {};

GraphedWork::GraphedWork(c10::Device device, std::function<at::Tensor()>, std::function<void()>) {
  TORCH_CHECK(false, "cuda_graph: expected a model on a GPU, got ", device,
              "; build the preset cuda and set device to cuda, or cuda_graph to false");
}
at::Tensor GraphedWork::run() { return {}; }
bool GraphedWork::captured() const { return false; }

#endif

GraphedWork::~GraphedWork() = default;

}  // namespace octavo::train
