#pragma once

#include <ATen/core/Tensor.h>

namespace octavo {

/// at::empty and at::empty_strided past the dispatcher where that saves time: on a GPU, where a
/// linear's many small tensors would otherwise cost its host as much as its launches.
at::Tensor empty_on(c10::Device device, at::IntArrayRef sizes, at::ScalarType dtype);
at::Tensor empty_strided_on(c10::Device device, at::IntArrayRef sizes, at::IntArrayRef strides,
                            at::ScalarType dtype);

}  // namespace octavo
