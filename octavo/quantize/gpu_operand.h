#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>

#include "octavo/kernels/gpu/groups.h"
#include "octavo/kernels/gpu/producer.h"
#include "octavo/quantize/quantize_produced.h"

/// Operands as the GPU quantisers take them. Included by *_cuda.cpp files only.
namespace octavo {

/// A matrix, or matrices of one size one after the other; or what a producer computes.
struct GpuOperand {
  gpu::Matrix x;
  c10::Device device;
  gpu::Groups groups = {};
  gpu::Producer from = {};
  at::Tensor scratch = {};  ///< quantize_scratch(x) floats, or undefined
  const Amaxes* known = nullptr;

  gpu::Stream stream() const { return c10::cuda::getCurrentCUDAStream(device.index()).stream(); }
};

/// Fills `out`, which has exactly the layouts of `spec`.
void quantize_gpu_operand(GpuOperand operand, const OperandSpec& spec, QuantizedOperand& out);

/// Amaxes that take a read of the operand, and nothing where one read finds and uses them.
struct AmaxesWanted {
  bool tensor, rows, columns;
};
std::optional<AmaxesWanted> amaxes_wanted(const GpuOperand& operand, const OperandSpec& spec);

}  // namespace octavo
