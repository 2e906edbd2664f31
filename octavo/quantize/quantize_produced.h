#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>

#include "octavo/quantize/quantize.h"
#include "octavo/quantize/quantize_grouped.h"

/// SwiGLU's results quantised while they are computed, and never written in high precision: one
/// pass that reads SwiGLU's inputs and writes both layouts, for block and MX scales, and for rows
/// alone with a scale each. Other scales are known only after a pass of their own, and SwiGLU is
/// too much work to do twice: it is written, and gives the amaxes of what it writes on the side
/// (Amaxes, docs/experiments/2026-11-29-fused-producers.md).
///
/// Every value is rounded to bf16 first, so bytes and scales are those of quantise(operation).
/// Nothing here is differentiable. GPUs only, bf16, sizes and formats the kernels take
/// (gpu::fits_producer()): where they do not, functions return nullopt, and the caller computes the
/// operand and quantises that.
namespace octavo {

/// What is computed:
///   h          silu(gate) * up          (M, F)   of gate, up (M, F)
///   gradients  [dgate | dup]            (M, 2F)  of dh, gate, up (M, F), where dh is defined
struct ProducedSwiglu {
  at::Tensor gate, up;
  at::Tensor dh = {};
};

/// The operand's layouts, as quantize_operand() of it. Both layouts, where both are wanted, by one
/// spec. `written`, if not null, also becomes the operand itself, (M, K) bf16: only beside rowwise
/// rows alone.
std::optional<QuantizedOperand> quantize_produced(const ProducedSwiglu& x, const OperandSpec& spec,
                                                  at::Tensor* written = nullptr);

/// SwiGLU's gradients as two operands: dgate and dup (M, F), each with scales of its own. `written`
/// becomes both.
std::optional<std::array<QuantizedOperand, 2>> quantize_swiglu_gradients(
    const at::Tensor& dh, const at::Tensor& gate, const at::Tensor& up, const OperandSpec& spec,
    std::array<at::Tensor, 2>* written = nullptr);

/// The operand's layouts by groups, as quantize_grouped_operand() of it.
std::optional<GroupedOperand> quantize_grouped_produced(const ProducedSwiglu& x,
                                                        const at::Tensor& offs,
                                                        const OperandSpec& spec,
                                                        at::Tensor* written = nullptr);

/// Zeros for the amaxes that quantize_operand(x, spec) would read x (M, K), whose values may be yet
/// to come, for: of whole-tensor scales, and of whole-row and whole-column ones. The kernel that
/// writes x adds to them, and they become spec.amax. nullopt where one read finds and uses them
/// (rows alone, an operand in a GPU's registers, block and MX scales), where x is empty or strided
/// along K, and on the CPU.
std::optional<Amaxes> amaxes_for(const at::Tensor& x, const OperandSpec& spec);

/// y = h * rstd * w (M, D) of RMSNorm: h (M, D), contiguous, rstd (M) fp32 and w (D), fp32, bf16 or
/// fp16. It is little work to do twice.
struct ProducedRmsNorm {
  at::Tensor h, rstd, w;
};

/// Whether quantize_rms_norm() takes it; rstd may be undefined yet. No for operands that are
/// quantised in one launch once they are written, because they fit a GPU's registers.
bool can_quantize_rms_norm(const ProducedRmsNorm& y, const OperandSpec& spec);

/// quantize_operand(y, spec) of a y that nobody has written. spec.amax: amaxes_for(h, spec), found,
/// where there are any.
QuantizedOperand quantize_rms_norm(const ProducedRmsNorm& y, const OperandSpec& spec);

}  // namespace octavo
