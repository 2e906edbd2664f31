#include "octavo/quantize/architecture_of.h"

#include <c10/util/Exception.h>

#if OCTAVO_WITH_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>

#include <map>
#include <string>
#endif

namespace octavo {
#if OCTAVO_WITH_CUDA
namespace {

Architecture ask(c10::Device device) {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device.index());
  const std::string name = "sm_" + std::to_string(10 * properties.major + properties.minor);
  try {
    return parse_architecture(name);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK(false, properties.name, ": ", error.what());
  }
}

}  // namespace
#endif

Architecture architecture_of(c10::Device device) {
  if (!device.is_cuda()) return parse_architecture("cpu");
#if OCTAVO_WITH_CUDA
  // Every product asks; the answer never changes.
  thread_local std::map<c10::DeviceIndex, Architecture> known;
  const c10::DeviceIndex index = device.has_index()
                                     ? device.index()
                                     : static_cast<c10::DeviceIndex>(c10::cuda::current_device());
  const auto found = known.find(index);
  if (found != known.end()) return found->second;
  return known.emplace(index, ask(c10::Device(at::kCUDA, index))).first->second;
#else
  TORCH_CHECK(false, "device: expected cpu, got ", device,
              "; this build has no GPU kernels: build the preset cuda");
#endif
}

std::string product_name(c10::Device device) {
  if (!device.is_cuda()) return "cpu";
  architecture_of(device);  // its errors
#if OCTAVO_WITH_CUDA
  return at::cuda::getDeviceProperties(device.index())->name;
#else
  return {};
#endif
}

}  // namespace octavo
