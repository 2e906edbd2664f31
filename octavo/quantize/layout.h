#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/quantize/quantize.h"
#include "octavo/quantize/quantize_grouped.h"
#include "octavo/quantize/scaled_tensor.h"

/// What quantize_operand() and its grouped relatives check and allocate alike.
namespace octavo {

/// Throws unless `tensor` is fp32, bf16 or fp16 on a CPU or CUDA device.
void check_operand(const char* argument, const at::Tensor& tensor);

/// Throws unless the layout has one of the named granularities and MX an OCP format.
void check_layout(const LayoutSpec& spec, const char* layout);

/// A layout (rows, columns) without content, its scales as default_scale_layout() lays them out.
ScaledTensor empty_layout(const LayoutSpec& spec, std::int64_t rows, std::int64_t columns,
                          c10::Device device);

/// The layouts of activations (rows, columns) by groups, without content; offs is `offs` itself.
GroupedOperand empty_grouped_operand(std::int64_t rows, std::int64_t columns,
                                     const at::Tensor& offs, const OperandSpec& spec);

/// r x c fp32 scales in rows padded to a multiple of 4, the padding 0 on the CPU.
at::Tensor padded_scale(std::int64_t r, std::int64_t c, c10::Device device);

}  // namespace octavo
