#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "octavo/kernels/counter.h"
#include "octavo/kernels/gpu/amax.h"
#include "octavo/kernels/gpu/cast.h"
#include "octavo/kernels/gpu/quantize_block.h"
#include "octavo/kernels/gpu/quantize_mx.h"
#include "octavo/kernels/gpu/quantize_resident.h"
#include "octavo/kernels/gpu/quantize_row.h"
#include "octavo/quantize/allocate.h"
#include "octavo/quantize/gpu_matrix.h"
#include "octavo/quantize/gpu_operand.h"
#include "octavo/quantize/quantize_device.h"

namespace octavo {
namespace {

// The kernels that write a layout, by its granularity.
enum class Family : std::uint8_t { kCast, kBlock, kMx };

// A layout wanted, with its tensors.
struct Wanted {
  const LayoutSpec* spec = nullptr;
  ScaledTensor* out = nullptr;

  explicit operator bool() const { return spec != nullptr; }
  std::uint8_t* data() const { return static_cast<std::uint8_t*>(out->data.data_ptr()); }
  float* scale() const { return out->scale.mutable_data_ptr<float>(); }
  bool is(const Granularity& granularity) const { return spec->granularity == granularity; }
};

Family family_of(const Wanted& layout) {
  if (layout.spec->granularity.mx) return Family::kMx;
  for (const Granularity& spans :
       {Granularity::tensorwise(), Granularity::rowwise(), Granularity::colwise()}) {
    if (layout.is(spans)) return Family::kCast;
  }
  return Family::kBlock;
}

// Whether one read of x can write both.
bool alike(const Wanted& a, const Wanted& b) {
  const Family family = family_of(a);
  if (family != family_of(b) || a.spec->format != b.spec->format) return false;
  if (family == Family::kMx) return a.spec->mx_rounding == b.spec->mx_rounding;
  if (a.spec->scale_rounding != b.spec->scale_rounding) return false;
  return family == Family::kCast ||
         a.is(Granularity::block_128x128()) == b.is(Granularity::block_128x128());
}

// Rows with a scale each, whose amax is at hand once the row is.
bool rows_alone(const GpuOperand& operand, const Wanted& rows, const Wanted& transposed) {
  return rows && !transposed && rows.is(Granularity::rowwise()) &&
         (operand.groups.count == 1 ||
          operand.groups.stride == operand.x.rows * operand.x.row_stride);
}

// What is done where all of x fits the GPU's registers.
std::optional<gpu::QuantizeResidentArgs> resident_args(const GpuOperand& operand,
                                                       const Wanted& rows,
                                                       const Wanted& transposed) {
  const auto layout = [](const Wanted& wanted) -> gpu::ResidentLayout {
    if (!wanted || !wanted.out) return {};
    return {wanted.data(), wanted.scale(), wanted.is(Granularity::rowwise())};
  };
  const LayoutSpec& spec = rows ? *rows.spec : *transposed.spec;
  const gpu::QuantizeResidentArgs args{.x = operand.x,
                                       .rows = layout(rows),
                                       .transposed = layout(transposed),
                                       .format = spec.format,
                                       .rounding = spec.scale_rounding};
  const bool across = (rows && rows.is(Granularity::colwise())) ||
                      (transposed && transposed.is(Granularity::colwise()));
  if (operand.groups.count != 1 || operand.from || across || !gpu::fits_resident(args)) {
    return std::nullopt;
  }
  return args;
}

// The amaxes that scales of two reads follow from.
AmaxesWanted amaxes_of(const Wanted& rows, const Wanted& transposed) {
  const auto wants = [](const Wanted& layout, const Granularity& granularity) {
    return layout && layout.is(granularity);
  };
  // A layout's scales run along it or, colwise, along the other axis of x.
  return {
      .tensor =
          wants(rows, Granularity::tensorwise()) || wants(transposed, Granularity::tensorwise()),
      .rows = wants(rows, Granularity::rowwise()) || wants(transposed, Granularity::colwise()),
      .columns = wants(rows, Granularity::colwise()) || wants(transposed, Granularity::rowwise())};
}

// Whole-row, whole-column and whole-tensor scales: two reads, or one where a row's amax is at hand,
// all of x fits the registers, or the amaxes are known.
void quantize_spans(const GpuOperand& operand, const Wanted& rows, const Wanted& transposed) {
  const gpu::Matrix& x = operand.x;
  const gpu::Groups& groups = operand.groups;
  const gpu::Stream stream = operand.stream();
  const LayoutSpec& spec = rows ? *rows.spec : *transposed.spec;
  ++kernels::counters().quantize;
  const auto floats = [&](std::int64_t count) {
    return operand.scratch.defined() ? operand.scratch
                                     : empty_on(operand.device, {count}, at::kFloat);
  };
  const AmaxesWanted wanted = amaxes_of(rows, transposed);
  const Amaxes& given = operand.amax;
  const bool known = (!wanted.tensor || given.tensor.defined()) &&
                     (!wanted.rows || given.rows.defined()) &&
                     (!wanted.columns || given.columns.defined());
  if (!known && rows_alone(operand, rows, transposed)) {
    gpu::Matrix all = x;
    all.rows *= groups.count;
    return gpu::quantize_row({.x = all,
                              .data = rows.data(),
                              .scale = rows.scale(),
                              .format = spec.format,
                              .rounding = spec.scale_rounding,
                              .from = operand.from},
                             stream);
  }
  if (auto resident = resident_args(operand, rows, transposed); resident && !known) {
    const at::Tensor partial = floats(gpu::resident_partials(x));
    resident->partial = partial.mutable_data_ptr<float>();
    return gpu::quantize_resident(*resident, stream);
  }
  gpu::WrittenAmax amaxes = written_amax(&given);  // of all matrices
  at::Tensor buffer;
  if (!known) {
    const AmaxPlaces places = amax_places(wanted, groups.count, x.rows, x.columns);
    buffer = floats(places.count);
    float* const first = buffer.mutable_data_ptr<float>();
    amaxes = {first, first + places.row, first + places.column};
    gpu::zero_amax(first, places.count, stream);
    ++kernels::counters().amax;
    gpu::amax({.x = x,
               .tensor = wanted.tensor ? amaxes.tensor : nullptr,
               .row = wanted.rows ? amaxes.row : nullptr,
               .column = wanted.columns ? amaxes.column : nullptr,
               .groups = groups},
              stream);
  }
  const auto layout = [&](const Wanted& wanted, const float* own,
                          const float* other) -> gpu::CastLayout {
    if (!wanted) return {};
    if (wanted.is(Granularity::tensorwise())) {
      return {wanted.data(), amaxes.tensor, gpu::CastScales::kTensor, wanted.scale()};
    }
    if (wanted.is(Granularity::colwise())) {
      return {wanted.data(), other, gpu::CastScales::kAcross, wanted.scale()};
    }
    return {wanted.data(), own, gpu::CastScales::kLines, wanted.scale()};
  };
  gpu::cast({.x = x,
             .rows = layout(rows, amaxes.row, amaxes.column),
             .transposed = layout(transposed, amaxes.column, amaxes.row),
             .format = spec.format,
             .rounding = spec.scale_rounding,
             .groups = groups,
             .from = operand.from},
            stream);
}

void quantize_blocks(const GpuOperand& operand, const Wanted& rows, const Wanted& transposed) {
  const LayoutSpec& spec = rows ? *rows.spec : *transposed.spec;
  const auto layout = [](const Wanted& wanted) -> gpu::BlockLayout {
    if (!wanted) return {};
    return {.data = wanted.data(),
            .scale = wanted.scale(),
            .scale_row_stride = wanted.out->scale.stride(-2),
            .scale_column_stride = wanted.out->scale.stride(-1),
            .scale_group_stride = wanted.out->scale.dim() == 3 ? wanted.out->scale.stride(0) : 0,
            .across = wanted.is(Granularity::block_128x1())};
  };
  ++kernels::counters().quantize;
  gpu::quantize_block(
      {.x = operand.x,
       .rows = layout(rows),
       .transposed = layout(transposed),
       .shape = spec.granularity == Granularity::block_128x128() ? gpu::BlockShape::k128x128
                                                                 : gpu::BlockShape::k1x128,
       .format = spec.format,
       .rounding = spec.scale_rounding,
       .groups = operand.groups,
       .from = operand.from},
      operand.stream());
}

void quantize_mx_blocks(const GpuOperand& operand, const Wanted& rows, const Wanted& transposed) {
  const LayoutSpec& spec = rows ? *rows.spec : *transposed.spec;
  const auto layout = [](const Wanted& wanted) -> gpu::MxLayout {
    if (!wanted) return {};
    return {wanted.data(), static_cast<std::uint8_t*>(wanted.out->scale.data_ptr())};
  };
  ++kernels::counters().quantize;
  gpu::quantize_mx({.x = operand.x,
                    .rows = layout(rows),
                    .transposed = layout(transposed),
                    .format = spec.format,
                    .rounding = spec.mx_rounding,
                    .groups = operand.groups,
                    .from = operand.from},
                   operand.stream());
}

}  // namespace

void quantize_gpu_operand(GpuOperand operand, const OperandSpec& spec, QuantizedOperand& out) {
  if (operand.groups.count == 0) return;
  const c10::cuda::CUDAGuard guard(operand.device);
  if (operand.groups.count == 1) operand.amax = spec.amax;
  Wanted rows, transposed;
  if (spec.rows) rows = {&*spec.rows, &out.rows};
  if (spec.transposed) transposed = {&*spec.transposed, &out.transposed};
  // A transposed view is its base with the layouts' roles exchanged.
  if (operand.x.column_stride != 1 && operand.x.row_stride == 1) {
    std::swap(operand.x.rows, operand.x.columns);
    std::swap(operand.x.row_stride, operand.x.column_stride);
    std::swap(rows, transposed);
    std::swap(operand.amax.rows, operand.amax.columns);
  }
  const auto write = [&](const Wanted& by_rows, const Wanted& by_columns) {
    switch (family_of(by_rows ? by_rows : by_columns)) {
      case Family::kCast:
        return quantize_spans(operand, by_rows, by_columns);
      case Family::kBlock:
        return quantize_blocks(operand, by_rows, by_columns);
      case Family::kMx:
        return quantize_mx_blocks(operand, by_rows, by_columns);
    }
  };
  if (rows && transposed && alike(rows, transposed)) {
    write(rows, transposed);
  } else {
    if (rows) write(rows, {});
    if (transposed) write({}, transposed);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

std::optional<AmaxesWanted> amaxes_wanted(const GpuOperand& operand, const OperandSpec& spec) {
  Wanted rows, transposed;
  if (spec.rows) rows.spec = &*spec.rows;
  if (spec.transposed) transposed.spec = &*spec.transposed;
  GpuOperand in_memory = operand;
  in_memory.from = {};
  if (operand.x.column_stride != 1 || family_of(rows ? rows : transposed) != Family::kCast ||
      (rows && transposed && !alike(rows, transposed)) || rows_alone(operand, rows, transposed) ||
      resident_args(in_memory, rows, transposed)) {
    return std::nullopt;
  }
  return amaxes_of(rows, transposed);
}

gpu::Matrix gpu_matrix_of(const at::Tensor& x) {
  gpu::Matrix matrix{x.const_data_ptr(), gpu_dtype(x), x.size(-2),
                     x.size(-1),         x.stride(-2), x.stride(-1)};
  // The stride of an extent of 1 means nothing and can be anything.
  if (matrix.columns == 1) matrix.column_stride = 1;
  if (matrix.rows == 1) matrix.row_stride = matrix.columns;
  return matrix;
}

void quantize_cuda(const at::Tensor& x, const OperandSpec& spec, QuantizedOperand& out,
                   const at::Tensor& scratch) {
  quantize_gpu_operand({.x = gpu_matrix_of(x), .device = x.device(), .scratch = scratch}, spec,
                       out);
}

void find_amaxes_cuda(const at::Tensor& x, const at::Tensor& all, Amaxes& out) {
  const c10::cuda::CUDAGuard guard(x.device());
  const gpu::Stream stream = c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
  gpu::Matrix matrix = gpu_matrix_of(x);
  // A transposed view is its base with rows and columns exchanged.
  if (matrix.column_stride != 1 && matrix.row_stride == 1) {
    std::swap(matrix.rows, matrix.columns);
    std::swap(matrix.row_stride, matrix.column_stride);
    std::swap(out.rows, out.columns);
  }
  const gpu::WrittenAmax places = written_amax(&out);
  gpu::zero_amax(all.mutable_data_ptr<float>(), all.numel(), stream);
  if (x.numel() > 0) ++kernels::counters().amax;
  gpu::amax({.x = matrix, .tensor = places.tensor, .row = places.row, .column = places.column},
            stream);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

std::int64_t quantize_scratch(const at::Tensor& x) {
  const gpu::Matrix matrix = gpu_matrix_of(x);
  gpu::Matrix other = matrix;  // a transposed view is quantised as its base
  std::swap(other.rows, other.columns);
  return std::max({matrix.rows + matrix.columns + 4, gpu::resident_partials(matrix),
                   gpu::resident_partials(other)});
}

void quantize_experts_cuda(const at::Tensor& w, const OperandSpec& spec, QuantizedOperand& out) {
  quantize_gpu_operand({.x = gpu_matrix_of(w),
                        .device = w.device(),
                        .groups = {.count = w.size(0), .stride = w.stride(0)}},
                       spec, out);
}

}  // namespace octavo
