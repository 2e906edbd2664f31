#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <limits>

#include "octavo/kernels/counter.h"
#include "octavo/kernels/gpu/amax.h"
#include "octavo/kernels/gpu/cast.h"
#include "octavo/kernels/gpu/group_tiles.h"
#include "octavo/kernels/gpu/quantize_block.h"
#include "octavo/kernels/gpu/quantize_mx.h"
#include "octavo/kernels/gpu/quantize_row.h"
#include "octavo/quantize/allocate.h"
#include "octavo/quantize/gpu_matrix.h"
#include "octavo/quantize/quantize_device.h"

namespace octavo {
namespace {

// One layout of an operand by groups, or none.
struct GroupedLayout {
  const LayoutSpec* spec = nullptr;
  ScaledTensor* out = nullptr;

  std::uint8_t* data() const {
    return spec ? static_cast<std::uint8_t*>(out->data.data_ptr()) : nullptr;
  }
  void* scale() const { return spec ? out->scale.data_ptr() : nullptr; }
  bool is(const Granularity& granularity) const { return spec && spec->granularity == granularity; }
};

// What is quantised: memory, or what a producer computes and perhaps writes too.
struct GroupedSource {
  gpu::Matrix x;
  gpu::Producer from;
  void* written;
};

// The groups as the kernels take them, planned on the device.
struct DeviceGroups {
  at::Tensor tiles, amaxes;
  gpu::Groups groups;
  const std::int32_t* present = nullptr;  // rows of groups
};

// Amaxes, cleared, for the rows and for every group's columns, if asked for.
DeviceGroups plan_on_device(const gpu::Matrix& x, std::int64_t columns, int alignment,
                            bool with_amaxes, GroupedOperand& out, gpu::Stream stream) {
  const std::int64_t experts = out.offs.size(0);
  const c10::Device device = out.offs.device();
  const std::int64_t limit = std::numeric_limits<std::int32_t>::max();
  TORCH_CHECK(columns + 128 * (experts + 2) < limit, "x: expected rows and ", alignment,
              " for each of ", experts, " groups to be fewer than 2^31, got ", x.rows,
              " rows; split the batch");
  DeviceGroups plan;
  const std::int64_t tiles = gpu::group_tile_count(columns, experts);
  const std::int64_t amaxes = with_amaxes ? x.rows + experts * x.columns : 0;
  plan.tiles =
      empty_on(device, {tiles * static_cast<std::int64_t>(sizeof(gpu::GroupTile))}, at::kByte);
  plan.amaxes = empty_on(device, {amaxes}, at::kFloat);
  const at::Tensor ends = empty_on(device, {experts}, at::kInt);
  auto* const table = static_cast<gpu::GroupTile*>(plan.tiles.data_ptr());
  gpu::plan_groups({.offs = out.offs.const_data_ptr<std::int32_t>(),
                    .groups = experts,
                    .rows = x.rows,
                    .alignment = alignment,
                    .columns = columns,
                    .ends = ends.mutable_data_ptr<std::int32_t>(),
                    .aligned_ends = out.offs_transposed.defined()
                                        ? out.offs_transposed.mutable_data_ptr<std::int32_t>()
                                        : nullptr,
                    .tiles = table,
                    .zero = with_amaxes ? plan.amaxes.mutable_data_ptr<float>() : nullptr,
                    .zero_count = amaxes},
                   stream);
  out.offs = ends;
  plan.groups = {.count = experts, .tiles = table, .tile_count = tiles, .columns = columns};
  plan.present = ends.const_data_ptr<std::int32_t>() + experts - 1;
  return plan;
}

void quantize_group_spans(const GroupedSource& source, const DeviceGroups& plan,
                          const GroupedLayout& rows, const GroupedLayout& transposed,
                          gpu::Stream stream) {
  const gpu::Matrix& x = source.x;
  const LayoutSpec& spec = rows.spec ? *rows.spec : *transposed.spec;
  const auto scale = [](const GroupedLayout& layout) {
    return static_cast<float*>(layout.scale());
  };
  ++kernels::counters().quantize;
  if (!transposed.spec) {
    return gpu::quantize_row({.x = x,
                              .data = rows.data(),
                              .scale = scale(rows),
                              .format = spec.format,
                              .rounding = spec.scale_rounding,
                              .present = plan.present,
                              .from = source.from,
                              .written = source.written},
                             stream);
  }
  float* const row = plan.amaxes.mutable_data_ptr<float>();
  float* const column = row + x.rows;
  ++kernels::counters().amax;
  gpu::amax({.x = x, .row = rows.spec ? row : nullptr, .column = column, .groups = plan.groups},
            stream);
  gpu::cast({.x = x,
             .rows = {rows.data(), row, gpu::CastScales::kLines, scale(rows)},
             .transposed = {transposed.data(), column, gpu::CastScales::kLines, scale(transposed)},
             .format = spec.format,
             .rounding = spec.scale_rounding,
             .groups = plan.groups},
            stream);
}

void quantize_group_blocks(const GroupedSource& source, const DeviceGroups& plan,
                           const GroupedLayout& rows, const GroupedLayout& transposed,
                           gpu::Stream stream) {
  const gpu::Matrix& x = source.x;
  const LayoutSpec& spec = rows.spec ? *rows.spec : *transposed.spec;
  ++kernels::counters().quantize;
  if (spec.granularity.mx) {
    const auto layout = [](const GroupedLayout& l) -> gpu::MxLayout {
      return {l.data(), static_cast<std::uint8_t*>(l.scale())};
    };
    return gpu::quantize_mx({.x = x,
                             .rows = layout(rows),
                             .transposed = layout(transposed),
                             .format = spec.format,
                             .rounding = spec.mx_rounding,
                             .groups = plan.groups,
                             .from = source.from},
                            stream);
  }
  const auto layout = [](const GroupedLayout& l) -> gpu::BlockLayout {
    if (!l.spec) return {};
    return {.data = l.data(),
            .scale = static_cast<float*>(l.scale()),
            .scale_row_stride = l.out->scale.stride(0),
            .scale_column_stride = l.out->scale.stride(1)};
  };
  gpu::quantize_block({.x = x,
                       .rows = layout(rows),
                       .transposed = layout(transposed),
                       .format = spec.format,
                       .rounding = spec.scale_rounding,
                       .groups = plan.groups,
                       .from = source.from},
                      stream);
}

}  // namespace

void quantize_grouped_cuda(const at::Tensor& x, const OperandSpec& spec, GroupedOperand& out) {
  quantize_grouped_matrix_cuda(gpu_matrix_of(x), {}, nullptr, spec, out);
}

void quantize_grouped_matrix_cuda(const gpu::Matrix& x, const gpu::Producer& from, void* written,
                                  const OperandSpec& spec, GroupedOperand& out) {
  const c10::Device device = out.offs.device();
  const c10::cuda::CUDAGuard guard(device);
  const gpu::Stream stream = c10::cuda::getCurrentCUDAStream(device.index()).stream();
  const GroupedSource source{x, from, written};
  GroupedLayout rows, transposed;
  if (spec.rows) rows = {&*spec.rows, &out.rows};
  if (spec.transposed) transposed = {&*spec.transposed, &out.transposed};
  // The rows layout takes any plan: its blocks do not depend on groups.
  const LayoutSpec& planned = transposed.spec ? *transposed.spec : *rows.spec;
  const DeviceGroups plan =
      plan_on_device(x, grouped_columns(x.rows, out.offs.size(0), planned.granularity),
                     static_cast<int>(group_alignment(planned.granularity)),
                     transposed.is(Granularity::rowwise()), out, stream);
  const auto write = [&](const GroupedLayout& by_rows, const GroupedLayout& by_columns) {
    const bool spans = by_rows.is(Granularity::rowwise()) || by_columns.is(Granularity::rowwise());
    (spans ? quantize_group_spans : quantize_group_blocks)(source, plan, by_rows, by_columns,
                                                           stream);
  };
  if (!rows.spec || !transposed.spec || *rows.spec == *transposed.spec) {
    write(rows, transposed);
  } else {
    write(rows, {});
    write({}, transposed);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace octavo
