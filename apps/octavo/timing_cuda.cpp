#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAEvent.h>

#include "apps/octavo/timing.h"

namespace octavo::app {

double cuda_seconds(const std::function<void()>& work) {
  at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
  begin.record();
  work();
  end.record();
  end.synchronize();
  return static_cast<double>(begin.elapsed_time(end)) * 1e-3;
}

std::int64_t cuda_cache_bytes(c10::Device device) {
  return at::cuda::getDeviceProperties(device.index())->l2CacheSize;
}

}  // namespace octavo::app
