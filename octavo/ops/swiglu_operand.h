#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "octavo/quantize/quantize_grouped.h"
#include "octavo/quantize/quantize_produced.h"

/// SwiGLU as the producer of a quantised operand: with `fuse`, where kernels can, in the pass that
/// quantises it, or written together with the amaxes its scales follow from
/// (quantize/quantize_produced.h); otherwise written and then quantised. The same bits in all ways.
/// `written`, if not null, becomes what is quantised, in high precision.
namespace octavo::ops {

/// h = silu(gate) * up of gate, up (M, F).
QuantizedOperand swiglu_operand(const at::Tensor& gate, const at::Tensor& up,
                                const OperandSpec& spec, bool fuse, at::Tensor* written = nullptr);

/// Its gradients dgate and dup, each an operand of its own.
std::array<QuantizedOperand, 2> swiglu_gradient_operands(const at::Tensor& dh,
                                                         const at::Tensor& gate,
                                                         const at::Tensor& up,
                                                         const OperandSpec& spec, bool fuse,
                                                         std::array<at::Tensor, 2>* written);

/// By groups of rows: h of gate_up (M, 2F), and [dgate | dup] (M, 2F) as one operand.
GroupedOperand grouped_swiglu_operand(const at::Tensor& gate_up, const at::Tensor& offs,
                                      const OperandSpec& spec, bool fuse,
                                      at::Tensor* written = nullptr);
GroupedOperand grouped_swiglu_gradient_operand(const at::Tensor& dh, const at::Tensor& gate_up,
                                               const at::Tensor& offs, const OperandSpec& spec,
                                               bool fuse, at::Tensor* written = nullptr);

}  // namespace octavo::ops
