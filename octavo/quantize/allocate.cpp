#include "octavo/quantize/allocate.h"

#include <ATen/Functions.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

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

at::Tensor piece_of(const at::Tensor& memory, std::int64_t offset, at::IntArrayRef sizes,
                    at::IntArrayRef strides, at::ScalarType dtype) {
  const auto element = static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::int64_t first =
      memory.storage_offset() * static_cast<std::int64_t>(memory.element_size()) + offset;
  TORCH_CHECK(first % element == 0, "offset: expected a multiple of ", element, " bytes, got ",
              first);
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(memory.storage()), memory.key_set(),
                                                   c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_and_strides(sizes, strides, first / element);
  return at::Tensor(std::move(impl));
}

}  // namespace octavo
