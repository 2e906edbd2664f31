#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/quantize/quantize.h"

/// What fills the layouts quantize_operand() has checked and allocated, by device. `x` is a matrix
/// of fp32, bf16 or fp16; `out` has exactly the layouts of `spec`.
namespace octavo {

void quantize_cpu(const at::Tensor& x, const OperandSpec& spec, QuantizedOperand& out);

/// On the current stream of x's device, without a host synchronisation. colwise and 128x1, which no
/// recipe asks for, go element by element.
void quantize_cuda(const at::Tensor& x, const OperandSpec& spec, QuantizedOperand& out);

}  // namespace octavo
