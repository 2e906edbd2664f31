#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "octavo/quantize/quantize.h"

/// How quantised layouts cross the dispatcher: FP8 data and e8m0 scales as uint8, scales flat.
namespace octavo::ops {

/// The scales of one layout as a flat tensor in memory order (128x128: with the rows' padding).
/// float8_linear's operators exchange them so: a tracer asks of every matrix whether it is
/// contiguous, which depends on a count of blocks being 1, and would tie its graph to the answer;
/// of a flat tensor it need not ask. A view of `scale`, which may be experts' (three dimensions).
at::Tensor flatten_scale(const at::Tensor& scale, const Granularity& granularity);

/// flatten_scale's inverse for a matrix (rows, columns), in default_scale_layout(granularity). An
/// error names `argument` where the number of scales does not fit.
at::Tensor unflatten_scale(std::string_view argument, const at::Tensor& flat,
                           const Granularity& granularity, std::int64_t rows, std::int64_t columns);

/// `scale` in the strides default_scale_layout(granularity) asks for: itself where it has them, as
/// all scales quantize_operand made do. Tools that clone what crosses the dispatcher (opcheck) make
/// the padded rows of 128x128 scales dense; then the few scales are copied.
at::Tensor in_default_layout(const at::Tensor& scale, const Granularity& granularity);

/// The scales of one layout as they cross: flat, e8m0 as uint8.
at::Tensor scale_bytes(const ScaledTensor& matrix);

/// A tensor of one-byte elements as uint8, others as they are.
at::Tensor to_bytes(const at::Tensor& tensor);

/// What an operator returns on a real device for an output nobody asked for: (0) on `like`'s
/// device.
at::Tensor absent(const at::Tensor& like, at::ScalarType dtype);

/// A matrix or a batch of them from data and scale as the product operators take them; `argument`
/// names the granularity in errors.
ScaledTensor scaled_tensor(const char* argument, const at::Tensor& data, const at::Tensor& scale,
                           std::string_view granularity);

/// The layout of data (R, C), or experts' (E, R, C), from what crossed; `scale_name` for errors.
ScaledTensor from_bytes(const char* scale_name, const at::Tensor& bytes, const at::Tensor& scale,
                        const LayoutSpec& spec);

/// The same for the transposed layout of activations by `experts` groups
/// (GroupedOperand::transposed).
ScaledTensor grouped_from_bytes(const char* scale_name, const at::Tensor& bytes,
                                const at::Tensor& scale, const LayoutSpec& spec,
                                std::int64_t experts);

}  // namespace octavo::ops
