#include "octavo/kernels/gpu/launch.h"

#include <atomic>

namespace octavo::gpu {

int multiprocessors() {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices];
  int device = 0;
#if OCTAVO_GPU_HIP
  (void)hipGetDevice(&device);
#else
  (void)cudaGetDevice(&device);
#endif
  if (device < 0 || device >= kDevices) device = 0;
  int count = known[device].load(std::memory_order_relaxed);
  if (count == 0) {
#if OCTAVO_GPU_HIP
    (void)hipDeviceGetAttribute(&count, hipDeviceAttributeMultiprocessorCount, device);
#else
    (void)cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
#endif
    if (count <= 0) count = 1;
    known[device].store(count, std::memory_order_relaxed);
  }
  return count;
}

void zero_async(void* buffer, std::size_t bytes, Stream stream) {
#if OCTAVO_GPU_HIP
  (void)hipMemsetAsync(buffer, 0, bytes, static_cast<NativeStream>(stream));
#else
  (void)cudaMemsetAsync(buffer, 0, bytes, static_cast<NativeStream>(stream));
#endif
}

}  // namespace octavo::gpu
