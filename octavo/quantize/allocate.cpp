#include "octavo/quantize/allocate.h"

#include <ATen/Functions.h>

#if OCTAVO_WITH_CUDA
#include <ATen/cuda/EmptyTensor.h>
#endif

namespace octavo {

at::Tensor empty_on(c10::Device device, at::IntArrayRef sizes, at::ScalarType dtype) {
#if OCTAVO_WITH_CUDA
  if (device.is_cuda()) {
    return at::Tensor(at::detail::empty_cuda(sizes, dtype, device, std::nullopt));
  }
#endif
  return at::empty(sizes, at::TensorOptions(device).dtype(dtype));
}

at::Tensor empty_strided_on(c10::Device device, at::IntArrayRef sizes, at::IntArrayRef strides,
                            at::ScalarType dtype) {
#if OCTAVO_WITH_CUDA
  if (device.is_cuda()) {
    return at::Tensor(at::detail::empty_strided_cuda(sizes, strides, dtype, device));
  }
#endif
  return at::empty_strided(sizes, strides, at::TensorOptions(device).dtype(dtype));
}

}  // namespace octavo
