#include "octavo/kernels/gpu/launch.h"

#include <atomic>
#include <string_view>

#include "octavo/kernels/gpu/producer.h"

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

bool fits_producer(const Producer& from, const Matrix& x, Format format, bool by_offsets) {
  const auto takes = [](const void* data, std::int64_t row_stride) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row_stride % 8 == 0;
  };
  const auto take = [&](const ConstRows& rows) { return takes(rows.data, rows.row_stride); };
  if (x.dtype != DType::kBF16 || x.columns % 8 != 0 || !has_cast_instruction(format)) return false;
  if (!by_offsets && x.rows % 16 != 0) return false;
  switch (from.what) {
    case Production::kSwiglu:
      return take(from.gate) && take(from.up) && element_of(format) == Element::kE4M3;
    case Production::kSwigluGradients:
      return take(from.gate) && take(from.up) && take(from.dh) && from.features % 8 == 0 &&
             from.first_column % 8 == 0;
    case Production::kRmsNorm:
      return take(from.h) && takes(from.w, 0) && element_of(format) == Element::kE4M3 &&
             !by_offsets;
    case Production::kNone:
      return false;
  }
  return false;
}

void zero_async(void* buffer, std::size_t bytes, Stream stream) {
#if OCTAVO_GPU_HIP
  (void)hipMemsetAsync(buffer, 0, bytes, static_cast<NativeStream>(stream));
#else
  (void)cudaMemsetAsync(buffer, 0, bytes, static_cast<NativeStream>(stream));
#endif
}

}  // namespace octavo::gpu
