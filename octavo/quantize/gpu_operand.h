#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <optional>

#include "octavo/kernels/gpu/amax.h"
#include "octavo/kernels/gpu/groups.h"
#include "octavo/kernels/gpu/producer.h"
#include "octavo/quantize/amaxes.h"

/// Operands as the GPU quantisers take them. Included by *_cuda.cpp files only.
namespace octavo {

/// A matrix, or matrices of one size one after the other; or what a producer computes.
struct GpuOperand {
  gpu::Matrix x;
  c10::Device device;
  gpu::Groups groups = {};
  gpu::Producer from = {};
  at::Tensor scratch = {};  ///< quantize_scratch(x) floats, or undefined
  Amaxes amax = {};         ///< as OperandSpec's

  gpu::Stream stream() const { return c10::cuda::getCurrentCUDAStream(device.index()).stream(); }
};

/// Fills `out`, which has exactly the layouts of `spec`; spec.amax counts for one matrix only.
void quantize_gpu_operand(GpuOperand operand, const OperandSpec& spec, QuantizedOperand& out);

/// Where the kernel that writes a matrix finds its amaxes, or reads them; null: nowhere.
inline gpu::WrittenAmax written_amax(const Amaxes* amaxes) {
  if (!amaxes) return {};
  const auto pointer = [](const at::Tensor& t) {
    return t.defined() ? t.mutable_data_ptr<float>() : nullptr;
  };
  return {pointer(amaxes->tensor), pointer(amaxes->rows), pointer(amaxes->columns)};
}

/// Amaxes that take a read of the operand, and nothing where one read finds and uses them.
struct AmaxesWanted {
  bool tensor, rows, columns;
};
std::optional<AmaxesWanted> amaxes_wanted(const GpuOperand& operand, const OperandSpec& spec);

/// [tensor | rows | columns] of `matrices` (rows, columns) in one buffer of `count` floats: where
/// the second and third part begin.
struct AmaxPlaces {
  std::int64_t row, column, count;
};
inline AmaxPlaces amax_places(const AmaxesWanted& wanted, std::int64_t matrices, std::int64_t rows,
                              std::int64_t columns) {
  const std::int64_t row = (matrices + 3) / 4 * 4;
  const std::int64_t column = row + (wanted.rows ? matrices * rows : 0);
  return {row, column, column + (wanted.columns ? matrices * columns : 0)};
}

}  // namespace octavo
