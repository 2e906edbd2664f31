#pragma once

#include <ATen/core/Tensor.h>

#include "octavo/kernels/gpu/producer.h"
#include "octavo/quantize/quantize.h"
#include "octavo/quantize/quantize_grouped.h"
#include "octavo/quantize/quantize_produced.h"

/// What fills the layouts quantize_operand() and its grouped relatives have checked and allocated,
/// by device. `x` is a matrix of fp32, bf16 or fp16; `out` has exactly the layouts of `spec`.
namespace octavo {

void quantize_cpu(const at::Tensor& x, const OperandSpec& spec, QuantizedOperand& out);

/// Fills those amaxes of x that are defined, in one read of it.
void find_amaxes_cpu(const at::Tensor& x, Amaxes& out);

/// The same on the current stream of x's device; they are parts of `all`, which holds nothing else.
void find_amaxes_cuda(const at::Tensor& x, const at::Tensor& all, Amaxes& out);

/// On the current stream of x's device, without a host synchronisation. colwise and 128x1, which no
/// recipe asks for, go element by element, but for colwise rows alone. scratch: quantize_scratch(x)
/// floats, or undefined: then what is needed is allocated.
void quantize_cuda(const at::Tensor& x, const OperandSpec& spec, QuantizedOperand& out,
                   const at::Tensor& scratch);

/// Floats that serve quantize_cuda() whatever layouts are asked for.
std::int64_t quantize_scratch(const at::Tensor& x);

/// The same for experts' weights w (E, N, K), all in the launches of one.
void quantize_experts_cuda(const at::Tensor& w, const OperandSpec& spec, QuantizedOperand& out);

/// The same for rows by groups, and one launch more that reads out.offs: the host never does. Sets
/// out.offs to the clamped ends and fills out.offs_transposed. Tensors of 2^31 columns are an
/// error.
void quantize_grouped_cuda(const at::Tensor& x, const OperandSpec& spec, GroupedOperand& out);

/// The same for a matrix of that shape which `from`, if it is one, computes; `written` (M, K) gets
/// it too if not null. On the current stream of out.offs's device.
void quantize_grouped_matrix_cuda(const gpu::Matrix& x, const gpu::Producer& from, void* written,
                                  const OperandSpec& spec, GroupedOperand& out);

}  // namespace octavo
