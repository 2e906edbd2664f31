#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "octavo/kernels/counter.h"
#include "octavo/kernels/gpu/amax.h"
#include "octavo/kernels/gpu/quantize_block.h"
#include "octavo/kernels/gpu/quantize_mx.h"
#include "octavo/kernels/gpu/quantize_row.h"
#include "octavo/quantize/allocate.h"
#include "octavo/quantize/gpu_matrix.h"
#include "octavo/quantize/gpu_operand.h"
#include "octavo/quantize/layout.h"
#include "octavo/quantize/quantize_device.h"
#include "octavo/quantize/quantize_produced.h"

namespace octavo {
namespace {

// One matrix that is computed, or both halves of SwiGLU's gradients in one launch a pass.
struct ProducedMatrices {
  gpu::Matrix shape;
  std::vector<gpu::Producer> from;
  c10::Device device;

  bool pair() const { return from.size() == 2; }
};

bool takes_rows(const at::Tensor& x) {
  return x.is_cuda() && x.dim() == 2 && x.scalar_type() == at::kBFloat16 &&
         (x.size(1) <= 1 || x.stride(1) == 1);
}

gpu::ConstRows const_rows(const at::Tensor& x) {
  return {x.const_data_ptr(), x.size(0) <= 1 ? x.size(1) : x.stride(0)};
}

gpu::Matrix shape_of(std::int64_t rows, std::int64_t columns) {
  return {nullptr, gpu::DType::kBF16, rows, columns, columns, 1};
}

std::optional<ProducedMatrices> matrices_of(const ProducedSwiglu& x) {
  const bool gradients = x.dh.defined();
  if (!takes_rows(x.gate) || !takes_rows(x.up) || (gradients && !takes_rows(x.dh))) {
    return std::nullopt;
  }
  const std::int64_t rows = x.gate.size(0), features = x.gate.size(1);
  gpu::Producer from{.what = gpu::Production::kSwiglu,
                     .gate = const_rows(x.gate),
                     .up = const_rows(x.up),
                     .features = features};
  if (gradients) {
    from.what = gpu::Production::kSwigluGradients;
    from.dh = const_rows(x.dh);
  }
  return ProducedMatrices{
      shape_of(rows, gradients ? 2 * features : features), {from}, x.gate.device()};
}

struct ProducedLayout {
  const LayoutSpec* spec = nullptr;
  ScaledTensor* out = nullptr;

  std::uint8_t* data() const {
    return spec ? static_cast<std::uint8_t*>(out->data.data_ptr()) : nullptr;
  }
  float* scale() const { return spec ? out->scale.mutable_data_ptr<float>() : nullptr; }
};

ProducedLayout layout_if(const std::optional<LayoutSpec>& spec, ScaledTensor& out) {
  return spec ? ProducedLayout{&*spec, &out} : ProducedLayout{};
}

// Calls one(args of the matrix) or two(args of both).
template <class Args, class One, class Two>
void launch_for(const ProducedMatrices& x, const Args& args_of, const One& one, const Two& two) {
  if (x.pair()) return two(args_of(0), args_of(1));
  one(args_of(0));
}

void produce_row_layout(const ProducedMatrices& x, const LayoutSpec& spec,
                        std::vector<QuantizedOperand>& out, std::vector<at::Tensor>* written,
                        gpu::Stream stream) {
  const auto args_of = [&](std::size_t i) {
    const ProducedLayout rows{&spec, &out[i].rows};
    return gpu::QuantizeRowArgs{.x = x.shape,
                                .data = rows.data(),
                                .scale = rows.scale(),
                                .format = spec.format,
                                .rounding = spec.scale_rounding,
                                .from = x.from[i],
                                .written = written ? (*written)[i].data_ptr() : nullptr};
  };
  launch_for(
      x, args_of, [&](const auto& args) { gpu::quantize_row(args, stream); },
      [&](const auto& a, const auto& b) { gpu::quantize_row_pair(a, b, stream); });
}

void produce_blocks(const ProducedMatrices& x, const OperandSpec& spec,
                    std::vector<QuantizedOperand>& out, gpu::Stream stream) {
  const LayoutSpec& any = spec.rows ? *spec.rows : *spec.transposed;
  if (any.granularity.mx) {
    const auto args_of = [&](std::size_t i) {
      const auto layout = [](const ProducedLayout& l) -> gpu::MxLayout {
        if (!l.spec) return {};
        return {l.data(), static_cast<std::uint8_t*>(l.out->scale.data_ptr())};
      };
      return gpu::QuantizeMxArgs{
          .x = x.shape,
          .rows = layout(layout_if(spec.rows, out[i].rows)),
          .transposed = layout(layout_if(spec.transposed, out[i].transposed)),
          .format = any.format,
          .rounding = any.mx_rounding,
          .from = x.from[i]};
    };
    return launch_for(
        x, args_of, [&](const auto& args) { gpu::quantize_mx(args, stream); },
        [&](const auto& a, const auto& b) { gpu::quantize_mx_pair(a, b, stream); });
  }
  const auto args_of = [&](std::size_t i) {
    const auto layout = [](const ProducedLayout& l) -> gpu::BlockLayout {
      if (!l.spec) return {};
      return {.data = l.data(),
              .scale = l.scale(),
              .scale_row_stride = l.out->scale.stride(0),
              .scale_column_stride = l.out->scale.stride(1)};
    };
    return gpu::QuantizeBlockArgs{
        .x = x.shape,
        .rows = layout(layout_if(spec.rows, out[i].rows)),
        .transposed = layout(layout_if(spec.transposed, out[i].transposed)),
        .format = any.format,
        .rounding = any.scale_rounding,
        .from = x.from[i]};
  };
  launch_for(
      x, args_of, [&](const auto& args) { gpu::quantize_block(args, stream); },
      [&](const auto& a, const auto& b) { gpu::quantize_block_pair(a, b, stream); });
}

bool is_row_alone(const OperandSpec& spec) {
  return spec.rows && !spec.transposed && spec.rows->granularity == Granularity::rowwise();
}

// Scales that follow from what one block of threads sees. Others take two passes, and SwiGLU is too
// much work to do twice.
bool takes_one_pass(const OperandSpec& spec) {
  if (!spec.rows && !spec.transposed) return false;
  if (spec.rows && spec.transposed && *spec.rows != *spec.transposed) return false;
  const Granularity& g = (spec.rows ? *spec.rows : *spec.transposed).granularity;
  return is_row_alone(spec) || g.mx || g == Granularity::block_1x128();
}

bool takes(const ProducedMatrices& x, const OperandSpec& spec, bool by_offsets) {
  if (x.shape.rows == 0 || x.shape.columns == 0 || !takes_one_pass(spec)) return false;
  const LayoutSpec& any = spec.rows ? *spec.rows : *spec.transposed;
  for (const gpu::Producer& from : x.from) {
    const bool fits =
        is_row_alone(spec)
            ? gpu::fits_row_producer({.x = x.shape, .format = any.format, .from = from})
            : gpu::fits_producer(from, x.shape, any.format, by_offsets);
    if (!fits) return false;
  }
  return true;
}

QuantizedOperand empty_operand(std::int64_t rows, std::int64_t columns, const OperandSpec& spec,
                               c10::Device device) {
  QuantizedOperand out;
  if (spec.rows) out.rows = empty_layout(*spec.rows, rows, columns, device);
  if (spec.transposed) out.transposed = empty_layout(*spec.transposed, columns, rows, device);
  return out;
}

// The layouts of every matrix, or nullopt.
std::optional<std::vector<QuantizedOperand>> quantize_matrices(const ProducedMatrices& x,
                                                               const OperandSpec& spec,
                                                               std::vector<at::Tensor>* written) {
  if (!takes(x, spec, /*by_offsets=*/false)) return std::nullopt;
  if (written && !is_row_alone(spec)) return std::nullopt;
  const std::int64_t rows = x.shape.rows, columns = x.shape.columns;
  const c10::cuda::CUDAGuard guard(x.device);
  const gpu::Stream stream = c10::cuda::getCurrentCUDAStream(x.device.index()).stream();
  ++kernels::counters().quantize;
  std::vector<QuantizedOperand> out;
  for (std::size_t i = 0; i < x.from.size(); ++i) {
    out.push_back(empty_operand(rows, columns, spec, x.device));
    if (written) written->push_back(empty_on(x.device, {rows, columns}, at::kBFloat16));
  }
  if (is_row_alone(spec)) {
    produce_row_layout(x, *spec.rows, out, written, stream);
  } else {
    produce_blocks(x, spec, out, stream);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

// y of RMSNorm as its producer computes it.
GpuOperand produced_operand(const ProducedRmsNorm& y) {
  const gpu::Producer from{.what = gpu::Production::kRmsNorm,
                           .h = {y.h.const_data_ptr(), y.h.size(1)},
                           .rstd = y.rstd.defined() ? y.rstd.const_data_ptr<float>() : nullptr,
                           .w = y.w.const_data_ptr(),
                           .w_dtype = gpu_dtype(y.w)};
  return {.x = shape_of(y.h.size(0), y.h.size(1)), .device = y.h.device(), .from = from};
}

}  // namespace

std::optional<QuantizedOperand> quantize_produced(const ProducedSwiglu& x, const OperandSpec& spec,
                                                  at::Tensor* written) {
  const std::optional<ProducedMatrices> matrices = matrices_of(x);
  if (!matrices) return std::nullopt;
  std::vector<at::Tensor> also;
  auto out = quantize_matrices(*matrices, spec, written ? &also : nullptr);
  if (!out) return std::nullopt;
  if (written) *written = also[0];
  return std::move((*out)[0]);
}

std::optional<std::array<QuantizedOperand, 2>> quantize_swiglu_gradients(
    const at::Tensor& dh, const at::Tensor& gate, const at::Tensor& up, const OperandSpec& spec,
    std::array<at::Tensor, 2>* written) {
  std::optional<ProducedMatrices> matrices = matrices_of({.gate = gate, .up = up, .dh = dh});
  if (!matrices) return std::nullopt;
  matrices->shape = shape_of(gate.size(0), gate.size(1));
  matrices->from.push_back(matrices->from[0]);
  matrices->from[1].first_column = gate.size(1);
  std::vector<at::Tensor> also;
  auto out = quantize_matrices(*matrices, spec, written ? &also : nullptr);
  if (!out) return std::nullopt;
  if (written) *written = {also[0], also[1]};
  return std::array{std::move((*out)[0]), std::move((*out)[1])};
}

std::optional<GroupedOperand> quantize_grouped_produced(const ProducedSwiglu& x,
                                                        const at::Tensor& offs,
                                                        const OperandSpec& spec,
                                                        at::Tensor* written) {
  const std::optional<ProducedMatrices> matrices = matrices_of(x);
  if (!matrices || !takes(*matrices, spec, /*by_offsets=*/true)) return std::nullopt;
  if (written && !is_row_alone(spec)) return std::nullopt;
  const gpu::Matrix& shape = matrices->shape;
  GroupedOperand out = empty_grouped_operand(shape.rows, shape.columns, offs, spec);
  if (written) *written = empty_on(matrices->device, {shape.rows, shape.columns}, at::kBFloat16);
  quantize_grouped_matrix_cuda(shape, matrices->from[0], written ? written->data_ptr() : nullptr,
                               spec, out);
  return out;
}

std::optional<Amaxes> amaxes_for(const at::Tensor& x, const OperandSpec& spec) {
  if (!x.is_cuda() || x.numel() == 0 || !(spec.rows || spec.transposed)) return std::nullopt;
  const gpu::Matrix matrix = gpu_matrix_of(x);
  const std::optional<AmaxesWanted> wanted =
      amaxes_wanted({.x = matrix, .device = x.device()}, spec);
  if (!wanted) return std::nullopt;
  const AmaxPlaces places = amax_places(*wanted, 1, matrix.rows, matrix.columns);
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor buffer = empty_on(x.device(), {places.count}, at::kFloat);
  gpu::zero_amax(buffer.mutable_data_ptr<float>(), places.count,
                 c10::cuda::getCurrentCUDAStream(x.device().index()).stream());
  const auto piece = [&](bool there, std::int64_t first, std::int64_t floats) {
    return there ? piece_of(buffer, 4 * first, {floats}, {1}, at::kFloat) : at::Tensor();
  };
  return Amaxes{.tensor = piece(wanted->tensor, 0, 1),
                .rows = piece(wanted->rows, places.row, matrix.rows),
                .columns = piece(wanted->columns, places.column, matrix.columns)};
}

bool can_quantize_rms_norm(const ProducedRmsNorm& y, const OperandSpec& spec) {
  if (!y.h.is_cuda() || y.h.scalar_type() != at::kBFloat16 || y.h.numel() == 0 ||
      !y.h.is_contiguous() || !y.w.is_contiguous() || !(spec.rows || spec.transposed) ||
      (spec.rows && spec.transposed && *spec.rows != *spec.transposed)) {
    return false;
  }
  const GpuOperand operand = produced_operand(y);
  const LayoutSpec& any = spec.rows ? *spec.rows : *spec.transposed;
  const Granularity& g = any.granularity;
  if (is_row_alone(spec)) {
    return gpu::fits_row_producer({.x = operand.x, .format = any.format, .from = operand.from});
  }
  // Scales of two passes are those whose amaxes are known; one of a small operand is quantised in
  // one launch once it is written.
  const bool spans = g == Granularity::tensorwise() || g == Granularity::rowwise();
  if (!(g.mx || g == Granularity::block_1x128() || (spans && amaxes_wanted(operand, spec)))) {
    return false;
  }
  return gpu::fits_producer(operand.from, operand.x, any.format, /*by_offsets=*/false);
}

QuantizedOperand quantize_rms_norm(const ProducedRmsNorm& y, const OperandSpec& spec) {
  const GpuOperand operand = produced_operand(y);
  QuantizedOperand out = empty_operand(y.h.size(0), y.h.size(1), spec, y.h.device());
  quantize_gpu_operand(operand, spec, out);
  return out;
}

}  // namespace octavo
