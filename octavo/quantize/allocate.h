#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace octavo {

/// at::empty and at::empty_strided past the dispatcher where that saves time: on a GPU, where a
/// linear's many small tensors would otherwise cost its host as much as its launches.
at::Tensor empty_on(c10::Device device, at::IntArrayRef sizes, at::ScalarType dtype);
at::Tensor empty_strided_on(c10::Device device, at::IntArrayRef sizes, at::IntArrayRef strides,
                            at::ScalarType dtype);

/// A tensor on `memory`'s storage, `offset` bytes after memory's first element, past the dispatcher
/// everywhere: below autograd, where nobody records views. Errors: the offset no multiple of the
/// element size.
at::Tensor piece_of(const at::Tensor& memory, std::int64_t offset, at::IntArrayRef sizes,
                    at::IntArrayRef strides, at::ScalarType dtype);

}  // namespace octavo
