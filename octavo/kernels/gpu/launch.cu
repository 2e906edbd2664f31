#include "octavo/kernels/gpu/launch.h"

#include <atomic>
#include <string_view>

namespace octavo::gpu {

namespace {

struct Device {
  std::atomic<int> multiprocessors;
  std::atomic<int> flavour;  // of its cast instructions; kNoFlavour: none
};
constexpr int kNoFlavour = -1;

int flavour_of_device([[maybe_unused]] int device) {
#if OCTAVO_GPU_HIP
  hipDeviceProp_t properties;
  if (hipGetDeviceProperties(&properties, device) != hipSuccess) return kNoFlavour;
  const std::string_view name(properties.gcnArchName);
  if (name.starts_with("gfx942")) return static_cast<int>(Flavour::kFNUZ);
  return name.starts_with("gfx95") || name.starts_with("gfx12") ? static_cast<int>(Flavour::kOCP)
                                                                : kNoFlavour;
#else
  int major = 0, minor = 0;
  (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return 10 * major + minor >= 89 ? static_cast<int>(Flavour::kOCP) : kNoFlavour;
#endif
}

// Asked of the driver once.
const Device& current_device() {
  constexpr int kDevices = 64;
  static Device known[kDevices];
  int device = 0;
#if OCTAVO_GPU_HIP
  (void)hipGetDevice(&device);
#else
  (void)cudaGetDevice(&device);
#endif
  if (device < 0 || device >= kDevices) device = 0;
  Device& it = known[device];
  if (it.multiprocessors.load(std::memory_order_acquire) == 0) {
    int count = 0;
#if OCTAVO_GPU_HIP
    (void)hipDeviceGetAttribute(&count, hipDeviceAttributeMultiprocessorCount, device);
#else
    (void)cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
#endif
    it.flavour.store(flavour_of_device(device), std::memory_order_relaxed);
    it.multiprocessors.store(count > 0 ? count : 1, std::memory_order_release);
  }
  return it;
}

}  // namespace

int multiprocessors() { return current_device().multiprocessors.load(std::memory_order_relaxed); }

bool has_cast_instruction(Format format) {
  return current_device().flavour.load(std::memory_order_relaxed) ==
         static_cast<int>(flavour_of(format));
}

void zero_async(void* buffer, std::size_t bytes, Stream stream) {
#if OCTAVO_GPU_HIP
  (void)hipMemsetAsync(buffer, 0, bytes, static_cast<NativeStream>(stream));
#else
  (void)cudaMemsetAsync(buffer, 0, bytes, static_cast<NativeStream>(stream));
#endif
}

}  // namespace octavo::gpu
